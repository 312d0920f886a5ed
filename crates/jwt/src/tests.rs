//! Vectors: each row is a token, or a key set, and the expected result. Most are attacks.

use std::cell::Cell;
use std::sync::LazyLock;

use evenkeel_testkit::jwt::{Signer, base64url, jwks};

use super::*;

thread_local! {
    /// Vectors that this thread has tried.
    static TRIED: Cell<usize> = const { Cell::new(0) };
}

/// Counts a vector.
fn tried() {
    TRIED.set(TRIED.get() + 1);
}

struct Keys {
    rsa: Signer,
    other: Signer,
    p256: Signer,
    p384: Signer,
    p521: Signer,
    ed25519: Signer,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys {
    rsa: Signer::rsa("rsa"),
    other: Signer::rsa("other"),
    p256: Signer::ec("p256", "P-256"),
    p384: Signer::ec("p384", "P-384"),
    p521: Signer::ec("p521", "P-521"),
    ed25519: Signer::ed25519("ed25519"),
});

const CLAIMS: &str = r#"{"iss":"me","sub":"you","aud":["a","b"],"exp":4102444800}"#;
const NOW: u64 = 1_800_000_000;

fn all() -> Jwks {
    let keys = &*KEYS;
    let set = jwks(&[&keys.rsa, &keys.p256, &keys.p384, &keys.p521, &keys.ed25519]);
    Jwks::parse(set.as_bytes()).unwrap()
}

fn judge(set: &Jwks, token: &str) -> Status {
    tried();
    let judge = || {
        let token = Token::parse(token.as_bytes())?;
        token.times.check(NOW, 60)?;
        set.verify(&token)
    };
    judge().err().unwrap_or(Status::Ok)
}

/// A modulus of 2048 bits that is a power of 65537 modulo the product of the first 126 primes (of the kind in
/// Wycheproof's json_web_key).
const ROCA: &str = concat!(
    "88ZK93WokpTCzXiaOAIIqa1F8j07GhHfWH_SgDurbDmNiDSKfu2NFPBtP-9wGWagw4HojzjAyP2HEri8B283h7nReeBsD9T1-",
    "BMMQjdzDt-vvWf5YZaZz-GYitnwbBRKAltBP4qaAh6mSKfdBoOeuQW25uMH1L7cUUMRk-bD8zkaK48f8f1HeEetjTJkmbR8bYmw-",
    "GBpRRcuIFOgB_Xq4C0cwaZiXLYcRBvIeUn7vtu2PqOsQyzudaM20IDBWzfbJAv20TaSa7ZJ_OAK3NNGT7Yz7yzcZ_I6egKiMeQNn",
    "fl-LGpBFpHOODaz7VfgQ5aSGzWKIEppVAtTf90B8KV8ZQ",
);

fn check(set: &Jwks, rows: Vec<(&str, String, Status)>) {
    for (name, token, expected) in rows {
        assert_eq!(judge(set, &token), expected, "{name}: {token}");
    }
}

#[test]
fn every_algorithm_verifies_with_its_own_keys_only() {
    let (keys, set) = (&*KEYS, all());
    let signers = [&keys.rsa, &keys.p256, &keys.p384, &keys.p521, &keys.ed25519];
    let own = |signer: &Signer, algorithm: &str| match signer.algorithm() {
        "RS256" => algorithm.starts_with("RS") || algorithm.starts_with("PS"),
        single => single == algorithm,
    };
    for signer in signers {
        for algorithm in
            ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS512"]
        {
            let header = format!(r#"{{"alg":"{algorithm}","kid":"{}"}}"#, signer.id);
            let token = signer.signed_by(algorithm, &header, CLAIMS);
            let expected = if own(signer, algorithm) { Status::Ok } else { Status::VerificationFail };
            assert_eq!(judge(&set, &token), expected, "{} {algorithm}", signer.id);
        }
    }
    // Padding and hash are part of the algorithm.
    for (named, signed) in [("RS256", "PS256"), ("PS256", "RS256"), ("RS256", "RS384"), ("PS512", "PS256")] {
        let token = keys.rsa.signed_by(signed, &format!(r#"{{"alg":"{named}"}}"#), CLAIMS);
        assert_eq!(judge(&set, &token), Status::VerificationFail, "{named} signed as {signed}");
    }
}

#[test]
fn headers_do_not_choose_how_a_token_is_verified() {
    let (keys, set) = (&*KEYS, all());
    let rsa = |header: &str| keys.rsa.signed(header, CLAIMS);
    let forged = |header: &str| keys.other.signed(header, CLAIMS);
    let unsigned = |header: &str| format!("{}.{}.", base64url(header), base64url(CLAIMS));
    let other = keys.other.jwk();
    check(
        &set,
        vec![
            ("good", rsa(r#"{"alg":"RS256","kid":"rsa"}"#), Status::Ok),
            ("no kid", rsa(r#"{"alg":"RS256"}"#), Status::Ok),
            ("empty kid", rsa(r#"{"alg":"RS256","kid":""}"#), Status::Ok),
            ("unknown kid", rsa(r#"{"alg":"RS256","kid":"nobody"}"#), Status::KidAlgMismatch),
            ("kid of another key", rsa(r#"{"alg":"RS256","kid":"p256"}"#), Status::VerificationFail),
            ("kid is a number", rsa(r#"{"alg":"RS256","kid":1}"#), Status::HeaderBadKid),
            ("kid is a path", rsa(r#"{"alg":"RS256","kid":"../../dev/null"}"#), Status::KidAlgMismatch),
            ("none, unsigned", unsigned(r#"{"alg":"none"}"#), Status::BadFormat),
            ("none, any signature", rsa(r#"{"alg":"none"}"#), Status::HeaderNotImplementedAlg),
            ("None", rsa(r#"{"alg":"None"}"#), Status::HeaderNotImplementedAlg),
            ("nOnE", rsa(r#"{"alg":"nOnE"}"#), Status::HeaderNotImplementedAlg),
            ("empty alg", rsa(r#"{"alg":""}"#), Status::HeaderNotImplementedAlg),
            ("lower case", rsa(r#"{"alg":"rs256"}"#), Status::HeaderNotImplementedAlg),
            ("with a space", rsa(r#"{"alg":"RS256 "}"#), Status::HeaderNotImplementedAlg),
            ("encryption", rsa(r#"{"alg":"RSA-OAEP"}"#), Status::HeaderNotImplementedAlg),
            ("no alg", rsa(r#"{"kid":"rsa"}"#), Status::HeaderBadAlg),
            ("alg is a list", rsa(r#"{"alg":["RS256"]}"#), Status::HeaderBadAlg),
            ("alg twice", rsa(r#"{"alg":"RS256","alg":"none"}"#), Status::HeaderBadJson),
            ("alg twice, escaped", rsa(r#"{"alg":"RS256","\u0061lg":"none"}"#), Status::HeaderBadJson),
            ("HMAC with the public key", rsa(r#"{"alg":"HS256","kid":"rsa"}"#), Status::VerificationFail),
            ("another's signature", forged(r#"{"alg":"RS256","kid":"rsa"}"#), Status::VerificationFail),
            ("own jwk", forged(&format!(r#"{{"alg":"RS256","jwk":{other}}}"#)), Status::VerificationFail),
            ("jku", forged(r#"{"alg":"RS256","jku":"https://evil/keys"}"#), Status::VerificationFail),
            ("x5u", forged(r#"{"alg":"RS256","x5u":"https://evil/cert"}"#), Status::VerificationFail),
            ("x5c", forged(r#"{"alg":"RS256","x5c":["AA"]}"#), Status::VerificationFail),
            ("ignored jwk", rsa(&format!(r#"{{"alg":"RS256","jwk":{other}}}"#)), Status::Ok),
            ("crit", rsa(r#"{"alg":"RS256","crit":["exp"],"exp":1}"#), Status::HeaderCritical),
            ("crit b64", rsa(r#"{"alg":"RS256","crit":["b64"],"b64":false}"#), Status::HeaderCritical),
            ("empty crit", rsa(r#"{"alg":"RS256","crit":[]}"#), Status::HeaderCritical),
            ("header is a list", rsa(r#"["alg","RS256"]"#), Status::HeaderBadJson),
            ("header with more behind it", rsa(r#"{"alg":"RS256"} {}"#), Status::HeaderBadJson),
            ("header with a comma", rsa(r#"{"alg":"RS256",}"#), Status::HeaderBadJson),
            ("header with single quotes", rsa("{'alg':'RS256'}"), Status::HeaderBadJson),
            ("header with a comment", rsa(r#"{"alg":"RS256"/**/}"#), Status::HeaderBadJson),
        ],
    );
}

#[test]
fn signatures_have_one_form() {
    let (keys, set) = (&*KEYS, all());
    let header = r#"{"alg":"ES256","kid":"p256"}"#;
    let input = format!("{}.{}", base64url(header), base64url(CLAIMS));
    let with = |signature: &[u8]| format!("{input}.{}", base64url(signature));
    let good = keys.p256.signature("ES256", input.as_bytes());
    let (r, s) = good.split_at(32);
    let order = hex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551");
    let der = [&[0x30, 0x44, 2, 0x20][..], r, &[2, 0x20], s].concat();
    let zero = [0; 32];
    check(
        &set,
        vec![
            ("good", with(&good), Status::Ok),
            ("empty", with(b""), Status::BadFormat),
            ("r only", with(r), Status::VerificationFail),
            ("a byte less", with(&good[..63]), Status::VerificationFail),
            ("a byte more", with(&[&good[..], &[0]].concat()), Status::VerificationFail),
            ("a zero in front of each", with(&[&[0][..], r, &[0], s].concat()), Status::VerificationFail),
            ("r = 0", with(&[&zero[..], s].concat()), Status::VerificationFail),
            ("s = 0", with(&[r, &zero[..]].concat()), Status::VerificationFail),
            ("both 0", with(&[0; 64]), Status::VerificationFail),
            ("r = order", with(&[&order[..], s].concat()), Status::VerificationFail),
            ("s = order", with(&[r, &order[..]].concat()), Status::VerificationFail),
            ("r and s = order", with(&[&order[..], &order[..]].concat()), Status::VerificationFail),
            ("all ones", with(&[0xff; 64]), Status::VerificationFail),
            ("DER", with(&der), Status::VerificationFail),
            ("exchanged", with(&[s, r].concat()), Status::VerificationFail),
            ("of P-384's length", with(&[&good[..], &zero[..]].concat()), Status::VerificationFail),
        ],
    );

    let header = r#"{"alg":"EdDSA","kid":"ed25519"}"#;
    let input = format!("{}.{}", base64url(header), base64url(CLAIMS));
    let with = |signature: &[u8]| format!("{input}.{}", base64url(signature));
    let good = keys.ed25519.signature("EdDSA", input.as_bytes());
    // The same signature with its second half increased by the group's order (RFC 8032 section 5.1.7 forbids it).
    let order = hex("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
    let malleable = [&good[..32], &sum(&good[32..], &order)].concat();
    check(
        &set,
        vec![
            ("good", with(&good), Status::Ok),
            ("s + order", with(&malleable), Status::VerificationFail),
            ("short", with(&good[..63]), Status::Ed25519SignatureWrongLength),
            ("long", with(&[&good[..], &[0]].concat()), Status::Ed25519SignatureWrongLength),
            ("zeros", with(&[0; 64]), Status::VerificationFail),
        ],
    );

    let header = r#"{"alg":"RS256","kid":"rsa"}"#;
    let input = format!("{}.{}", base64url(header), base64url(CLAIMS));
    let with = |signature: &[u8]| format!("{input}.{}", base64url(signature));
    let good = keys.rsa.signature("RS256", input.as_bytes());
    check(
        &set,
        vec![
            ("good", with(&good), Status::Ok),
            ("a byte less", with(&good[1..]), Status::VerificationFail),
            ("a zero in front", with(&[&[0][..], &good].concat()), Status::VerificationFail),
            ("a zero behind", with(&[&good[..], &[0]].concat()), Status::VerificationFail),
            ("zero", with(&[0; 256]), Status::VerificationFail),
            ("one", with(&[&[0; 255][..], &[1]].concat()), Status::VerificationFail),
            ("all ones", with(&[0xff; 256]), Status::VerificationFail),
        ],
    );
}

#[test]
fn a_token_has_one_text() {
    let (keys, set) = (&*KEYS, all());
    let good = keys.p256.token(CLAIMS);
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
    let with = |header: &str, payload: &str, signature: &str| format!("{header}.{payload}.{signature}");
    // 64 bytes leave four unused bits in the last character.
    let last = signature.chars().last().unwrap();
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let at = alphabet.find(last).unwrap();
    let unused = format!("{}{}", &signature[..signature.len() - 1], &alphabet[at + 1..at + 2]);
    let flipped = if payload.starts_with('e') { payload.replacen('e', "f", 1) } else { String::new() };
    let long = base64url(format!(r#"{{"iss":"me","x":"{}"}}"#, "x".repeat(MAX_TOKEN_BYTES)));
    let deep = base64url(format!(r#"{{"x":{}{}}}"#, "[".repeat(200), "]".repeat(200)));
    check(
        &set,
        vec![
            ("good", good.clone(), Status::Ok),
            ("nothing", String::new(), Status::BadFormat),
            ("two dots", "..".to_owned(), Status::BadFormat),
            ("one part", header.to_owned(), Status::BadFormat),
            ("two parts", format!("{header}.{payload}"), Status::BadFormat),
            ("no signature", with(header, payload, ""), Status::BadFormat),
            ("four parts", format!("{good}.x"), Status::BadFormat),
            ("a dot behind", format!("{good}."), Status::BadFormat),
            ("a dot in front", format!(".{good}"), Status::BadFormat),
            ("two dots in a row", format!("{header}..{payload}.{signature}"), Status::BadFormat),
            ("encrypted", format!("{header}.a.b.c.d"), Status::BadFormat),
            ("trailing space", format!("{good} "), Status::SignatureBadBase64),
            ("trailing newline", format!("{good}\n"), Status::SignatureBadBase64),
            ("trailing NUL", format!("{good}\0"), Status::SignatureBadBase64),
            ("leading space", format!(" {good}"), Status::HeaderBadBase64),
            ("not ASCII", format!("é{good}"), Status::HeaderBadBase64),
            ("plus", with(header, payload, &format!("+{}", &signature[1..])), Status::SignatureBadBase64),
            ("slash", with(header, payload, &format!("/{}", &signature[1..])), Status::SignatureBadBase64),
            ("correct padding", with(header, payload, &format!("{signature}==")), Status::Ok),
            ("one = too few", with(header, payload, &format!("{signature}=")), Status::SignatureBadBase64),
            ("one = too many", with(header, payload, &format!("{signature}===")), Status::SignatureBadBase64),
            ("unused bits set", with(header, payload, &unused), Status::SignatureBadBase64),
            ("one character", with(header, payload, "A"), Status::SignatureBadBase64),
            ("more behind", with(header, payload, &format!("{signature}AAAA")), Status::VerificationFail),
            ("other header", with(&base64url(r#"{"alg":"ES256"}"#), payload, signature), Status::VerificationFail),
            ("other payload", with(header, &base64url(r#"{"iss":"me"}"#), signature), Status::VerificationFail),
            ("flipped bit", with(header, &flipped, signature), Status::PayloadBadJson),
            ("payload is no base64", with(header, "!", signature), Status::PayloadBadBase64),
            ("too long", with(header, &long, signature), Status::BadFormat),
            ("too deep", with(header, &deep, signature), Status::PayloadBadJson),
        ],
    );
    assert_eq!(judge(&set, &String::from_utf8_lossy(b"\xff.\xff.\xff")), Status::HeaderBadBase64);
    assert_eq!(Token::parse(b"\xff.\xff.\xff").err(), Some(Status::BadFormat));
}

#[test]
fn claims_have_their_types_and_times_their_range() {
    let (keys, set) = (&*KEYS, all());
    let claims = |claims: &str| keys.p256.token(claims);
    check(
        &set,
        vec![
            ("none at all", claims("{}"), Status::Ok),
            ("iss is a number", claims(r#"{"iss":1}"#), Status::IssNotString),
            ("iss is null", claims(r#"{"iss":null}"#), Status::IssNotString),
            ("iss is a list", claims(r#"{"iss":["me"]}"#), Status::IssNotString),
            ("iss twice", claims(r#"{"iss":"me","iss":"you"}"#), Status::PayloadBadJson),
            ("nested name twice", claims(r#"{"a":{"b":1,"b":2}}"#), Status::PayloadBadJson),
            ("sub is an object", claims(r#"{"sub":{}}"#), Status::SubNotString),
            ("jti is a number", claims(r#"{"jti":1}"#), Status::JtiNotString),
            ("aud is a number", claims(r#"{"aud":1}"#), Status::AudNotString),
            ("aud has a number", claims(r#"{"aud":["a",1]}"#), Status::AudNotString),
            ("aud is an object", claims(r#"{"aud":{"a":"a"}}"#), Status::AudNotString),
            ("aud is empty", claims(r#"{"aud":[]}"#), Status::Ok),
            ("iat is text", claims(r#"{"iat":"1"}"#), Status::IatNotInteger),
            ("iat is negative", claims(r#"{"iat":-1}"#), Status::IatOutOfRange),
            ("nbf is text", claims(r#"{"nbf":"1"}"#), Status::NbfNotInteger),
            ("nbf is 2^64", claims(r#"{"nbf":18446744073709551616}"#), Status::NbfOutOfRange),
            ("nbf to come", claims(&format!(r#"{{"nbf":{}}}"#, NOW + 61)), Status::NotYetValid),
            ("nbf within the skew", claims(&format!(r#"{{"nbf":{}}}"#, NOW + 60)), Status::Ok),
            ("nbf far away", claims(r#"{"nbf":18446744073709549568}"#), Status::NotYetValid),
            ("exp passed", claims(&format!(r#"{{"exp":{}}}"#, NOW - 61)), Status::Expired),
            ("exp within the skew", claims(&format!(r#"{{"exp":{}}}"#, NOW - 60)), Status::Ok),
            ("exp is text", claims(r#"{"exp":"4102444800"}"#), Status::ExpNotInteger),
            ("exp is null", claims(r#"{"exp":null}"#), Status::ExpNotInteger),
            ("exp is true", claims(r#"{"exp":true}"#), Status::ExpNotInteger),
            ("exp is negative", claims(r#"{"exp":-4102444800}"#), Status::ExpOutOfRange),
            ("exp is -0.0", claims(r#"{"exp":-0.0}"#), Status::Expired),
            ("exp is 0", claims(r#"{"exp":0}"#), Status::Expired),
            ("exp is 0.9", claims(r#"{"exp":0.9}"#), Status::Expired),
            ("exp is a fraction", claims(r#"{"exp":4102444800.75}"#), Status::Ok),
            ("exp with an exponent", claims(r#"{"exp":4.1024448e9}"#), Status::Ok),
            ("exp is 2^64", claims(r#"{"exp":18446744073709551616}"#), Status::ExpOutOfRange),
            ("exp overflows with the skew", claims(r#"{"exp":18446744073709549568}"#), Status::Ok),
            ("exp is 1e300", claims(r#"{"exp":1e300}"#), Status::ExpOutOfRange),
            ("exp is 1e400", claims(r#"{"exp":1e400}"#), Status::PayloadBadJson),
            ("exp is NaN", claims(r#"{"exp":NaN}"#), Status::PayloadBadJson),
            ("exp is Infinity", claims(r#"{"exp":Infinity}"#), Status::PayloadBadJson),
            ("exp twice", claims(r#"{"exp":1,"exp":4102444800}"#), Status::PayloadBadJson),
            ("payload is a list", claims("[]"), Status::PayloadBadJson),
            ("payload is text", claims(r#""x""#), Status::PayloadBadJson),
            ("payload is empty", format!("{}.=.AA", base64url(r#"{"alg":"ES256"}"#)), Status::PayloadBadBase64),
            ("payload with more behind it", claims("{}{}"), Status::PayloadBadJson),
            ("payload with a NUL behind it", claims("{}\0"), Status::PayloadBadJson),
            ("payload with a byte order mark", claims("\u{feff}{}"), Status::PayloadBadJson),
            ("payload with half a surrogate", claims(r#"{"iss":"\ud800"}"#), Status::PayloadBadJson),
        ],
    );
}

#[test]
fn key_sets_use_what_is_safe_and_say_what_they_skip() {
    let keys = &*KEYS;
    let rsa = keys.rsa.fields();
    let p256 = keys.p256.fields();
    let small = format!(r#""kty":"RSA","e":"AQAB","n":"{}""#, base64url([0xc5; 128]));
    let even = rsa.replace("AQAB", "AQAA");
    let one = rsa.replace("AQAB", "AQ");
    let off = format!(r#""kty":"EC","crv":"P-256","x":"{0}","y":"{0}""#, base64url([1; 32]));
    let zero = format!(r#""kty":"EC","crv":"P-256","x":"{0}","y":"{0}""#, base64url([0; 32]));
    let text = |fields: &str| format!(r#"{{"keys":[{{{fields}}}]}}"#);
    let skipped = |fields: &str| match Jwks::parse(text(fields).as_bytes()) {
        Ok(_) => "used".to_owned(),
        Err(error) => error.to_string(),
    };
    for (name, fields, expected) in [
        ("RSA", rsa.clone(), "used"),
        ("RSA for signatures", format!(r#"{rsa},"use":"sig""#), "used"),
        ("RSA for encryption", format!(r#"{rsa},"use":"enc""#), "not for signatures"),
        ("RSA that may verify", format!(r#"{rsa},"key_ops":["verify"]"#), "used"),
        ("RSA that may encrypt", format!(r#"{rsa},"key_ops":["encrypt"]"#), "not for signatures"),
        ("RSA with its own alg", format!(r#"{rsa},"alg":"PS512""#), "used"),
        ("RSA with another alg", format!(r#"{rsa},"alg":"ES256""#), "does not belong"),
        ("RSA with HMAC's alg", format!(r#"{rsa},"alg":"HS256""#), "does not belong"),
        ("RSA with alg none", format!(r#"{rsa},"alg":"none""#), "does not belong"),
        ("RSA of 1024 bits", small, "1024 bits"),
        ("RSA of the ROCA kind", format!(r#""kty":"RSA","e":"AQAB","n":"{ROCA}""#), "CVE-2017-15361"),
        ("RSA of no bits", r#""kty":"RSA","e":"AQAB","n":"""#.to_owned(), "0 bits"),
        ("RSA with an even exponent", even, "exponent"),
        ("RSA with exponent 1", one, "exponent"),
        ("RSA without n", r#""kty":"RSA","e":"AQAB""#.to_owned(), "`n` is missing"),
        ("RSA with n in base64", r#""kty":"RSA","e":"AQAB","n":"a+/b""#.to_owned(), "`n` is not base64url"),
        ("EC", p256.clone(), "used"),
        ("EC with a zero in front", p256.replace(r#""y":""#, r#""y":"AAAA"#), "used"),
        ("EC off the curve", off, "no valid public key"),
        ("EC at zero", zero, "no valid public key"),
        ("EC on another curve", p256.replace("P-256", "P-384"), "no valid public key"),
        ("EC on Bitcoin's curve", p256.replace("P-256", "secp256k1"), "secp256k1"),
        ("EC with another's alg", format!(r#"{p256},"alg":"ES384""#), "does not belong"),
        ("Ed25519", keys.ed25519.fields(), "used"),
        ("Ed25519, too short", r#""kty":"OKP","crv":"Ed25519","x":"AAAA""#.to_owned(), "no valid public key"),
        ("X25519", keys.ed25519.fields().replace("Ed25519", "X25519"), "X25519"),
        ("secret", r#""kty":"oct","k":"c2VjcmV0","alg":"HS256""#.to_owned(), "shared secret"),
        ("unknown type", r#""kty":"AKP""#.to_owned(), "`kty: AKP`"),
        ("no type", r#""kid":"x""#.to_owned(), "`kty` is missing"),
    ] {
        tried();
        let said = skipped(&fields);
        assert!(said.contains(expected), "{name}: {said}");
    }
    for (text, expected) in [
        ("", JwksError::Json("EOF while parsing a value at line 1 column 0".to_owned())),
        ("{}", JwksError::NoKeys),
        ("[]", JwksError::NoKeys),
        (r#"{"keys":{}}"#, JwksError::BadKeys),
        (r#"{"keys":[]}"#, JwksError::NoValidKeys(Vec::new())),
        (r#"{"keys":[1]}"#, JwksError::NoValidKeys(vec![(0, KeyError::NoObject)])),
        (r#"{"keys":[],"keys":[]}"#, JwksError::Json("\"keys\" occurs twice at line 1 column 19".to_owned())),
    ] {
        tried();
        match (Jwks::parse(text.as_bytes()), expected) {
            (Err(JwksError::Json(_)), JwksError::Json(_)) => {}
            (found, expected) => assert_eq!(found.err(), Some(expected), "{text}"),
        }
    }
    let many = format!(r#"{{"keys":[{}]}}"#, vec!["1"; MAX_KEYS + 1].join(","));
    assert_eq!(Jwks::parse(many.as_bytes()).err(), Some(JwksError::TooManyKeys(MAX_KEYS + 1)));
    let large = format!("{{{}}}", " ".repeat(MAX_JWKS_BYTES));
    assert_eq!(Jwks::parse(large.as_bytes()).err(), Some(JwksError::TooLarge(MAX_JWKS_BYTES + 2)));
    let mixed = format!(r#"{{"keys":[{{"kty":"oct","k":"AA"}},{}]}}"#, keys.p256.jwk());
    let mixed = Jwks::parse(mixed.as_bytes()).unwrap();
    assert_eq!((mixed.len(), mixed.skipped.as_slice()), (1, &[(0, KeyError::Secret)][..]));
}

#[test]
fn a_key_with_an_algorithm_verifies_no_other() {
    let keys = &*KEYS;
    let set = format!(r#"{{"keys":[{{{},"kid":"rsa","alg":"RS256"}}]}}"#, keys.rsa.fields());
    let set = Jwks::parse(set.as_bytes()).unwrap();
    let token = |algorithm: &str| keys.rsa.signed_by(algorithm, &format!(r#"{{"alg":"{algorithm}"}}"#), CLAIMS);
    check(
        &set,
        vec![
            ("its own", token("RS256"), Status::Ok),
            ("another hash", token("RS512"), Status::KidAlgMismatch),
            ("another padding", token("PS256"), Status::KidAlgMismatch),
            ("HMAC", token("HS256"), Status::KidAlgMismatch),
        ],
    );
}

#[test]
fn audiences_are_compared_without_scheme_and_slash() {
    let accepted = Audiences::new(["https://a.test/", "b"]);
    for (audience, expected) in [
        ("a.test", true),
        ("http://a.test", true),
        ("https://a.test/", true),
        ("a.test//", false),
        ("ftp://a.test", false),
        ("A.test", false),
        ("b/", true),
        ("", false),
    ] {
        tried();
        assert_eq!(accepted.allow([audience].into_iter()), expected, "{audience}");
    }
    assert!(!accepted.allow([].into_iter()) && Audiences::default().allow([].into_iter()));
}

/// SECURITY.md says how many vectors there are.
#[test]
fn the_security_page_has_their_number() {
    let suites = [
        every_algorithm_verifies_with_its_own_keys_only,
        headers_do_not_choose_how_a_token_is_verified,
        signatures_have_one_form,
        a_token_has_one_text,
        claims_have_their_types_and_times_their_range,
        key_sets_use_what_is_safe_and_say_what_they_skip,
        a_key_with_an_algorithm_verifies_no_other,
        audiences_are_compared_without_scheme_and_slash,
    ];
    TRIED.set(0);
    suites.iter().for_each(|suite| suite());
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md")).expect("the page");
    let said = format!("`crates/jwt/src/tests.rs`: {} vectors", TRIED.get());
    assert!(page.contains(&said), "SECURITY.md does not say {said:?}");
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The sum of two numbers in little-endian order.
fn sum(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut carry = 0;
    let add = |(a, b): (&u8, &u8)| {
        carry += u16::from(*a) + u16::from(*b);
        let [low, high] = carry.to_le_bytes();
        carry = u16::from(high);
        low
    };
    a.iter().zip(b).map(add).collect()
}

/// The answer of a server may be secret, and what is logged about it is read by whoever named the server.
#[test]
fn a_reason_can_be_said_without_the_text_of_the_set() {
    let check = |text: &str, expected: &str| {
        let plain = Jwks::parse(text.as_bytes()).expect_err(text).plain();
        assert_eq!(plain, expected);
        assert!(!plain.contains("hush"), "{plain}");
    };
    check(r#"{"hush": 1, "hush": 2}"#, "it is not valid JSON");
    check(r#"{"hush": "x"}"#, "it is no JSON object with the list `keys` (RFC 7517)");
    let key = |fields: &str| format!(r#"{{"keys": [{{{fields}}}]}}"#);
    let none = "it has no usable key; keys[0]:";
    check(&key(r#""kty": "hush""#), &format!("{none} its `kty` is not supported"));
    check(&key(r#""kty": "RSA", "use": "hush""#), &format!("{none} it is not for signatures"));
    check(&key(r#""kty": "OKP", "crv": "hush""#), &format!("{none} its `crv` is not supported"));
    let other = format!("{none} its `alg` does not belong to a key of this type and curve");
    check(&key(r#""kty": "RSA", "alg": "hush""#), &other);
}

/// 32 tokens of a request times 100 keys took seconds.
#[test]
fn a_token_is_tried_with_a_bounded_number_of_keys() {
    let token = KEYS.p256.token(CLAIMS);
    let parsed = Token::parse(token.as_bytes()).expect("a token");
    let (mut none, mut one) = (0, 1);
    assert_eq!(all().verify_within(&parsed, &mut none), Err(Status::VerificationFail));
    assert_eq!((all().verify_within(&parsed, &mut one), one), (Ok(()), 0));
}
