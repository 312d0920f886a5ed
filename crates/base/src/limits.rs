//! Named limits on users' files, each with its unit.

/// Maximum size of a configuration file, in bytes.
pub const MAX_FILE_BYTES: usize = 8 * 1024 * 1024;
/// Deepest nesting of mappings and sequences in a YAML document, in levels.
pub const MAX_YAML_DEPTH: usize = 128;
/// Maximum number of nodes in one YAML file, those copied by aliases included.
pub const MAX_YAML_NODES: usize = 500_000;
/// Maximum number of `,`, `[` and `{` in one YAML file. The parser keeps some 350 bytes for each part of a list or mapping in brackets
/// until the outermost one is closed.
pub const MAX_YAML_FLOW_PARTS: usize = 2 * MAX_YAML_NODES;
/// Maximum number of nodes that aliases and merge keys may copy in one document.
pub const MAX_YAML_ALIAS_NODES: usize = 20_000;
/// Most lines of flow collections (`[…]`, `{…}`) in one file that may stand less indented than the specification asks,
/// in lines. Each of them costs another pass over its document up to that line.
pub const MAX_YAML_FLOW_DEDENTS: usize = 64;
/// Maximum number of bytes of one file that are read again because of such lines.
pub const MAX_YAML_BYTES_AGAIN: usize = MAX_FILE_BYTES / 2;
/// Maximum number of syntax errors searched for in one file; reading stops after the last one.
pub const MAX_YAML_SYNTAX_ERRORS: usize = 100;
/// Maximum number of findings reported for one file; one more says that there are others.
pub const MAX_DIAGNOSTICS_PER_FILE: usize = 200;
/// Maximum number of findings searched for in one file; reading stops with an error after the last one.
pub const MAX_FINDINGS_PER_FILE: usize = 10_000;
/// Maximum length of a DNS name, in characters (RFC 1035 section 2.3.4, without the root's dot).
pub const MAX_HOSTNAME_CHARS: usize = 253;
/// Maximum length of a label of a DNS name, in characters (RFC 1035 section 2.3.4).
pub const MAX_LABEL_CHARS: usize = 63;
/// Maximum length of a SPIFFE id, in bytes (SPIFFE-ID section 2.3).
pub const MAX_SPIFFE_ID_BYTES: usize = 2048;
