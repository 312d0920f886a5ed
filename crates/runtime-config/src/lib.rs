//! xDS resources compiled to what a request needs; answers what would happen to a call without a socket
