//! Envoy xDS v3: protobuf types, JSON form, ADS state machines without I/O, thin client and server
