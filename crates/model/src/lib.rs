//! The immutable Snapshot: services, endpoints, policies and gateways, built from api values
