//! What one side compresses the other reads, in pieces of any size; malformed, cut off and oversized bodies are errors.

use std::io::Write;

use brotli::enc::BrotliEncoderParams;
use evenkeel_runtime_config::compression::{BrotliMode, Coding, Compression, Decompression};

use super::{Decoder, Encoder, Malformed};

const ALL: [Compression; 4] = [
    Compression::Gzip { level: 6 },
    Compression::Brotli { quality: 3, window_bits: 18, mode: BrotliMode::Text },
    Compression::Zstd { level: 3, checksum: false },
    Compression::Zstd { level: 1, checksum: true },
];

fn text() -> Vec<u8> {
    (0..5000).flat_map(|number: u32| format!("{} ", number.wrapping_mul(2_654_435_761) % 977).into_bytes()).collect()
}

fn compressed(compression: Compression, body: &[u8], piece: usize) -> Vec<u8> {
    let mut encoder = Encoder::new(compression).expect("memory");
    let mut all: Vec<u8> = body.chunks(piece).flat_map(|piece| encoder.push(piece)).collect();
    all.extend(encoder.finish());
    all
}

fn decompressed(coding: Coding, max_ratio: u32, body: &[u8], piece: usize) -> Result<Vec<u8>, Malformed> {
    let mut decoder = Decoder::new(Decompression { coding, max_ratio }).expect("memory");
    let mut all = Vec::new();
    for piece in body.chunks(piece) {
        all.extend(decoder.push(piece, false)?);
    }
    all.extend(decoder.push(b"", true)?);
    Ok(all)
}

#[test]
fn a_body_comes_back_in_pieces_of_any_size() {
    let body = text();
    for compression in ALL {
        for (written, read) in [(1 << 20, 1 << 20), (1000, 7), (333, 4096)] {
            let sent = compressed(compression, &body, written);
            assert!(sent.len() < body.len(), "{compression:?}");
            let got = decompressed(compression.coding(), 100, &sent, read);
            assert_eq!(got.as_deref(), Ok(&*body), "{compression:?} {written} {read}");
        }
    }
}

#[test]
fn each_piece_can_be_read_when_it_has_been_sent() {
    for compression in ALL {
        let mut encoder = Encoder::new(compression).expect("memory");
        let mut decoder = Decoder::new(Decompression { coding: compression.coding(), max_ratio: 100 }).expect("memory");
        for piece in ["first", "second"] {
            let sent = encoder.push(piece.as_bytes());
            assert_eq!(decoder.push(&sent, false).as_deref(), Ok(piece.as_bytes()), "{compression:?}");
        }
    }
}

#[test]
fn an_empty_body_is_none() {
    for compression in ALL {
        assert_eq!(decompressed(compression.coding(), 100, b"", 1), Ok(Vec::new()), "{compression:?}");
    }
}

#[test]
fn what_is_not_in_its_coding_is_malformed() {
    let body = text();
    for compression in ALL {
        let coding = compression.coding();
        let whole = compressed(compression, &body, 1 << 20);
        assert_eq!(
            decompressed(coding, 100, &whole[..whole.len() / 2], 512),
            Err(Malformed),
            "{compression:?} cut off"
        );
        assert_eq!(decompressed(coding, 100, &[0x7f; 4000], 512), Err(Malformed), "{compression:?} other bytes");
    }
}

#[test]
fn a_body_that_grows_beyond_the_ratio_is_malformed() {
    let zeros = vec![0; 1 << 20];
    for compression in ALL {
        let bomb = compressed(compression, &zeros, 1 << 20);
        assert!(bomb.len() * 100 < zeros.len(), "{compression:?}: {} bytes", bomb.len());
        for piece in [1 << 20, 16] {
            assert_eq!(
                decompressed(compression.coding(), 100, &bomb, piece),
                Err(Malformed),
                "{compression:?} {piece}"
            );
        }
    }
}

/// Bytes that no coding makes smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut state: u64 = 88_172_645_463_325_252;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn a_bomb_behind_a_long_harmless_body_is_malformed() {
    let body = [noise(1 << 21), vec![0; 8 << 20]].concat();
    for compression in ALL {
        let mut encoder = Encoder::new(compression).expect("memory");
        let (harmless, bomb) = body.split_at(1 << 21);
        let sent = [encoder.push(harmless), encoder.push(bomb), encoder.finish()];
        assert!(sent[0].len() >= harmless.len() && sent[1].len() * 200 < bomb.len(), "{compression:?}");
        let mut decoder = Decoder::new(Decompression { coding: compression.coding(), max_ratio: 100 }).expect("memory");
        for piece in sent[0].chunks(1 << 14) {
            decoder.push(piece, false).expect("a harmless piece");
        }
        assert_eq!(decoder.push(&sent[1], false), Err(Malformed), "{compression:?}");
    }
}

#[test]
fn members_of_gzip_and_frames_of_zstandard_are_one_body() {
    for compression in [ALL[0], ALL[2], ALL[3]] {
        let all: Vec<u8> =
            [&b"one "[..], b"", b"three"].iter().flat_map(|part| compressed(compression, part, 100)).collect();
        for piece in [all.len(), 1, 7] {
            let got = decompressed(compression.coding(), 100, &all, piece);
            assert_eq!(got.as_deref(), Ok(&b"one three"[..]), "{compression:?} {piece}");
        }
        let garbage = [&*all, b"garbage behind it"].concat();
        assert_eq!(decompressed(compression.coding(), 100, &garbage, 7), Err(Malformed), "{compression:?}");
    }
}

#[test]
fn what_stands_before_the_malformed_part_of_a_piece_can_be_read() {
    let body = text().repeat(20);
    for compression in ALL {
        let mut encoder = Encoder::new(compression).expect("memory");
        let sent = [encoder.push(&body), vec![0xff; 100]].concat();
        let mut decoder =
            Decoder::new(Decompression { coding: compression.coding(), max_ratio: 9999 }).expect("memory");
        assert_eq!(decoder.push(&sent, false), Err(Malformed), "{compression:?}");
        let rest = decoder.rest();
        // The other libraries keep what they have not given out.
        let least = if compression.coding() == Coding::Gzip { body.len() } else { body.len() / 2 };
        assert!(body.starts_with(&rest) && rest.len() >= least, "{compression:?}: {} of {}", rest.len(), body.len());
        assert_eq!(decoder.rest(), b"", "{compression:?}");
    }
}

#[test]
fn every_level_makes_what_receivers_have_to_take() {
    let body = text();
    for level in [19, 20, 22] {
        let sent = compressed(Compression::Zstd { level, checksum: true }, &body, 1 << 20);
        assert_eq!(decompressed(Coding::Zstd, 100, &sent, 4096).as_deref(), Ok(&*body), "{level}");
    }
}

#[test]
fn a_sender_does_not_choose_how_much_memory_a_window_takes() {
    for (window_log, is_taken) in [(23, true), (24, false), (27, false)] {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("memory");
        encoder.window_log(window_log).expect("a size of windows");
        encoder.write_all(&text()).expect("a vector");
        let sent = encoder.finish().expect("a vector");
        assert_eq!(decompressed(Coding::Zstd, 100, &sent, 4096).is_ok(), is_taken, "{window_log}");
    }
    for (lgwin, large_window, is_taken) in [(24, false, true), (24, true, false), (30, true, false)] {
        let params = BrotliEncoderParams { quality: 3, lgwin, large_window, ..BrotliEncoderParams::default() };
        let mut encoder = brotli::CompressorWriter::with_params(Vec::new(), 4096, &params);
        encoder.write_all(&text()).expect("a vector");
        let sent = encoder.into_inner();
        assert_eq!(decompressed(Coding::Brotli, 100, &sent, 4096).is_ok(), is_taken, "{lgwin} {large_window}");
    }
}
