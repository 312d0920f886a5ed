//! Fakes and fixtures for tests: ports, processes, raw HTTP clients, Envoy from its package
