//! HTTP and network filters, one folder each
