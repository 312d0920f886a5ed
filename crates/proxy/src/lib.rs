//! Workers, balance, listeners, request phases, upstream pools, access log, admin
