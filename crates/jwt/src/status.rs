//! The result of verifying a token, with Envoy's numbers and texts.

/// The result of verifying a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// The token is valid.
    Ok,
    /// There is no token.
    Missed,
    /// `nbf` has not come.
    NotYetValid,
    /// `exp` has passed.
    Expired,
    /// Not three non-empty parts, or longer than [`crate::MAX_TOKEN_BYTES`].
    BadFormat,
    /// The header is not base64url.
    HeaderBadBase64,
    /// The header is no JSON object, or has a name twice.
    HeaderBadJson,
    /// The header has no string `alg`.
    HeaderBadAlg,
    /// The header's `alg` is no known algorithm.
    HeaderNotImplementedAlg,
    /// The header's `kid` is no string.
    HeaderBadKid,
    /// The header demands extensions (`crit`, RFC 7515 section 4.1.11); none is supported.
    HeaderCritical,
    /// The payload is not base64url.
    PayloadBadBase64,
    /// The payload is no JSON object, or has a name twice.
    PayloadBadJson,
    /// `iss` is no string.
    IssNotString,
    /// `sub` is no string.
    SubNotString,
    /// `iat` is no number.
    IatNotInteger,
    /// `iat` is negative or too large.
    IatOutOfRange,
    /// `nbf` is no number.
    NbfNotInteger,
    /// `nbf` is negative or too large.
    NbfOutOfRange,
    /// `exp` is no number.
    ExpNotInteger,
    /// `exp` is negative or too large.
    ExpOutOfRange,
    /// `jti` is no string.
    JtiNotString,
    /// `aud` is neither a string nor a list of strings.
    AudNotString,
    /// The signature is not base64url.
    SignatureBadBase64,
    /// An Ed25519 signature does not have 64 bytes.
    Ed25519SignatureWrongLength,
    /// No provider accepts the issuer here.
    UnknownIssuer,
    /// None of the audiences is accepted.
    AudienceNotAllowed,
    /// The signature, subject or lifetime is not valid.
    VerificationFail,
    /// There are more tokens than are examined.
    MultipleTokens,
    /// There are no usable keys.
    NoValidKeys,
    /// No key has the token's `kid` and `alg`.
    KidAlgMismatch,
    /// The keys could not be fetched.
    FetchFail,
    /// The fetched key set is not JSON.
    JwksParseError,
    /// The fetched key set has no `keys`.
    JwksNoKeys,
    /// The fetched key set's `keys` is no list.
    JwksBadKeys,
}

impl Status {
    /// The text that clients see.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Missed => "Jwt is missing",
            Self::NotYetValid => "Jwt not yet valid",
            Self::Expired => "Jwt is expired",
            Self::BadFormat => "Jwt is not in the form of Header.Payload.Signature with two dots and 3 sections",
            Self::HeaderBadBase64 => "Jwt header is an invalid Base64url encoded",
            Self::HeaderBadJson => "Jwt header is an invalid JSON",
            Self::HeaderBadAlg => "Jwt header [alg] field is required and must be a string",
            Self::HeaderNotImplementedAlg => "Jwt header [alg] is not supported",
            Self::HeaderBadKid => "Jwt header [kid] field is not a string",
            Self::HeaderCritical => "Jwt header [crit] is not supported",
            Self::PayloadBadBase64 => "Jwt payload is an invalid Base64url encoded",
            Self::PayloadBadJson => "Jwt payload is an invalid JSON",
            Self::IssNotString => "Jwt payload [iss] field is not a string",
            Self::SubNotString => "Jwt payload [sub] field is not a string",
            Self::IatNotInteger => "Jwt payload [iat] field is not an integer",
            Self::IatOutOfRange => "Jwt payload [iat] field is not a positive 64 bit integer",
            Self::NbfNotInteger => "Jwt payload [nbf] field is not an integer",
            Self::NbfOutOfRange => "Jwt payload [nbf] field is not a positive 64 bit integer",
            Self::ExpNotInteger => "Jwt payload [exp] field is not an integer",
            Self::ExpOutOfRange => "Jwt payload [exp] field is not a positive 64 bit integer",
            Self::JtiNotString => "Jwt payload [jti] field is not a string",
            Self::AudNotString => "Jwt payload [aud] field is not a string or string list",
            Self::SignatureBadBase64 => "Jwt signature is an invalid Base64url encoded",
            Self::Ed25519SignatureWrongLength => "Jwt ED25519 signature is wrong length",
            Self::UnknownIssuer => "Jwt issuer is not configured",
            Self::AudienceNotAllowed => "Audiences in Jwt are not allowed",
            Self::VerificationFail => "Jwt verification fails",
            Self::MultipleTokens => "Found multiple Jwt tokens",
            Self::NoValidKeys => "Jwks doesn't have any valid public key",
            Self::KidAlgMismatch => "Jwks doesn't have key to match kid or alg from Jwt",
            Self::FetchFail => "Jwks remote fetch is failed",
            Self::JwksParseError => "Jwks is an invalid JSON",
            Self::JwksNoKeys => "Jwks does not have [keys] field",
            Self::JwksBadKeys => "[keys] in Jwks is not an array",
        }
    }

    /// Envoy's number, which `failed_status_in_metadata` writes.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Missed => 1,
            Self::NotYetValid => 2,
            Self::Expired => 3,
            Self::BadFormat => 4,
            Self::HeaderBadBase64 => 5,
            Self::HeaderBadJson => 6,
            Self::HeaderBadAlg => 7,
            // Envoy ignores `crit`.
            Self::HeaderNotImplementedAlg | Self::HeaderCritical => 8,
            Self::HeaderBadKid => 9,
            Self::PayloadBadBase64 => 10,
            Self::PayloadBadJson => 11,
            Self::IssNotString => 12,
            Self::SubNotString => 13,
            Self::IatNotInteger => 14,
            Self::IatOutOfRange => 15,
            Self::NbfNotInteger => 16,
            Self::NbfOutOfRange => 17,
            Self::ExpNotInteger => 18,
            Self::ExpOutOfRange => 19,
            Self::JtiNotString => 20,
            Self::AudNotString => 21,
            Self::SignatureBadBase64 => 22,
            Self::Ed25519SignatureWrongLength => 23,
            Self::UnknownIssuer => 24,
            Self::AudienceNotAllowed => 25,
            Self::VerificationFail => 26,
            Self::MultipleTokens => 27,
            Self::JwksParseError => 28,
            Self::JwksNoKeys => 29,
            Self::JwksBadKeys => 30,
            Self::NoValidKeys => 31,
            Self::KidAlgMismatch => 32,
            Self::FetchFail => 39,
        }
    }
}
