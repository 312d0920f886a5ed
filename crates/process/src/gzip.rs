//! Pages that are compressed for clients that accept it (RFC 9110, section 12.5.3).

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// The value of `Content-Encoding`.
pub const GZIP: &str = "gzip";
/// Minimum size of a page that is compressed, in bytes: a smaller one fits into a packet as it is.
const MIN_BYTES: usize = 1_400;

/// Whether an `Accept-Encoding` header accepts gzip.
pub fn is_accepted(accept_encoding: Option<&str>) -> bool {
    let (mut named, mut any) = (None, None);
    for coding in accept_encoding.unwrap_or_default().split(',') {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.to_ascii_lowercase().strip_prefix("q=").map(str::to_owned));
        let is_wanted = quality.is_none_or(|quality| quality.trim().parse::<f32>().is_ok_and(|quality| quality > 0.0));
        match &*name {
            "gzip" | "x-gzip" => named = Some(is_wanted),
            "*" => any = Some(is_wanted),
            _ => {}
        }
    }
    named.or(any).unwrap_or(false)
}

/// Returns the page compressed; `None`: it stays as it is.
pub fn compressed(page: &[u8], accept_encoding: Option<&str>) -> Option<Vec<u8>> {
    if page.len() < MIN_BYTES || !is_accepted(accept_encoding) {
        return None;
    }
    // Pages of metrics repeat themselves: the fastest level makes them ten times smaller.
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    encoder.write_all(page).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn clients_say_whether_they_accept_it() {
        let check = |header: Option<&str>, expected: bool| assert_eq!(is_accepted(header), expected, "{header:?}");
        check(None, false);
        check(Some(""), false);
        check(Some("gzip"), true);
        check(Some("deflate, GZIP;q=0.5"), true);
        check(Some("gzip;q=0, *"), false);
        check(Some("br, *;q=0.1"), true);
        check(Some("identity"), false);
        check(Some("gzip;q=none"), false);
    }

    #[test]
    fn large_pages_are_compressed() {
        let page = "istio_requests_total{reporter=\"source\"} 1\n".repeat(1000);
        let bytes = compressed(page.as_bytes(), Some("gzip")).expect("it is accepted");
        assert!(bytes.len() * 10 < page.len(), "{}", bytes.len());
        let mut read = String::new();
        flate2::read::GzDecoder::new(&*bytes).read_to_string(&mut read).expect("gzip");
        assert_eq!(read, page);
        assert_eq!(compressed(page.as_bytes(), None), None);
        assert_eq!(compressed(b"small", Some("gzip")), None);
    }
}
