//! rustls configuration, SPIFFE verification, SNI, certificate store
