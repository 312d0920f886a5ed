//! Every user-facing kind: YAML with source spans to typed values and diagnostics
