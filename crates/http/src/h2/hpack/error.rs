//! Errors of a header block.

/// Why a block cannot be decoded. The tables of the two sides differ from here on, so the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HpackError {
    /// The block ends inside a field.
    #[error("header block ends early")]
    Truncated,
    /// An integer over 32 bits.
    #[error("integer in a header block is too large")]
    Integer,
    /// An index beyond both tables.
    #[error("index beyond the header tables")]
    Index,
    /// A string that is no Huffman code.
    #[error("malformed Huffman code in a header block")]
    Huffman,
    /// A table size update over the limit, missing, or not at the block's start.
    #[error("invalid header table size update")]
    TableSize,
}
