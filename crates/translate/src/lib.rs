//! (ProxyView, Snapshot) to xDS resources, one file per resource kind
