//! The HTTP/1 codec.

use evenkeel_http::encode::{self, Connection, ResponseStyle};
use evenkeel_http::{
    BodyDecoder, Framing, HeadScan, Headers, RequestHead, RequestRules, ResponseHead, ResponseRules, parse_request,
    parse_response,
};

use super::Target;

pub const REQUEST: Target = Target {
    name: "h1_request",
    run: request,
    seeds: &[
        b"GET /a/b?c=d HTTP/1.1\r\nHost: a.b:80\r\nUser-Agent: x\r\nConnection: keep-alive, x-y\r\n\r\n",
        b"POST http://h/p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
        b"PUT /x HTTP/1.1\r\nhost: [::1]:1\r\ntransfer-encoding: chunked\r\nTe: trailers\r\n\r\n0\r\n\r\n",
        b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n",
        b"OPTIONS * HTTP/1.0\r\n\r\n",
    ],
    mutations: 30_000,
};

pub const RESPONSE: Target = Target {
    name: "h1_response",
    run: response,
    seeds: &[
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nserver: x\r\n\r\nabc",
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n",
        b"HTTP/1.0 404 Not Found\r\nconnection: keep-alive\r\n\r\n",
        b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\nset-cookie: a=b\r\nset-cookie: c=d\r\n\r\n",
    ],
    mutations: 30_000,
};

pub const CHUNKED: Target = Target {
    name: "h1_chunked",
    run: chunked,
    seeds: &[
        b"\x035\r\nhello\r\nA;x=\"1\"\r\n0123456789\r\n0\r\nx-t: 1\r\ngrpc-status: 0\r\n\r\nrest",
        b"\x070\r\n\r\n",
        b"\x100005\r\nhello\r\n00\r\ncontent-length: 5\r\na: b\r\n\r\n",
    ],
    mutations: 40_000,
};

/// An accepted request can be written and parsed back unchanged, and the split of its bytes makes no difference.
fn request(data: &[u8]) {
    let parse = |bytes: &[u8]| {
        let mut head = RequestHead::default();
        parse_request(bytes, &mut HeadScan::default(), RequestRules::default(), &mut head)
            .map(|info| info.map(|i| (head, i)))
    };
    let Ok(Some((head, info))) = parse(data) else { return };
    let (mut pieces, mut scan) = (RequestHead::default(), HeadScan::default());
    let (mut again, step) = (None, data.len().div_ceil(7));
    for end in (step..data.len() + step).step_by(step) {
        let piece = &data[..end.min(data.len())];
        again = parse_request(piece, &mut scan, RequestRules::default(), &mut pieces).expect("whole it was valid");
        if again.is_some() {
            break;
        }
    }
    assert_eq!(again, Some(info), "cut in pieces");
    let mut wire = Vec::new();
    encode::request(&mut wire, &head, info.framing, Connection::Default);
    let (back, back_info) = parse(&wire).expect("what is written is valid").expect("and complete");
    assert_eq!((back.method(), back.path(), back.authority()), (head.method(), head.path(), head.authority()));
    assert_eq!((back_info.framing, back_info.head_bytes), (info.framing, wire.len()));
    let mut hop = head.clone();
    hop.headers.remove_hop_by_hop();
}

fn response(data: &[u8]) {
    for to_head in [false, true] {
        let parse = |bytes: &[u8]| {
            let mut head = ResponseHead::default();
            let info = parse_response(
                bytes,
                &mut HeadScan::default(),
                ResponseRules { to_head, ..ResponseRules::default() },
                &mut head,
            );
            info.map(|info| info.map(|info| (head, info)))
        };
        let Ok(Some((head, info))) = parse(data) else { continue };
        let mut wire = Vec::new();
        let bodiless = to_head || matches!(head.status, 100..=199 | 204 | 304);
        let style = ResponseStyle {
            version: head.version,
            framing: info.framing,
            bodiless,
            connection: Connection::Default,
            proper_case: false,
        };
        encode::response(&mut wire, &head, style);
        let (back, back_info) = parse(&wire).expect("what is written is valid").expect("and complete");
        assert_eq!((back.status, back_info.framing), (head.status, info.framing));
    }
}

/// The first byte says in which pieces the rest comes.
fn chunked(data: &[u8]) {
    let Some((&step, input)) = data.split_first() else { return };
    let whole = decode(input, input.len().max(1));
    assert_eq!(decode(input, usize::from(step).max(1)), whole, "cut in pieces");
    let Some((payload, trailers, true)) = whole else { return };
    let mut wire = Vec::new();
    payload.chunks(usize::from(step).max(1)).for_each(|piece| encode::chunk(&mut wire, piece));
    let mut headers = Headers::default();
    trailers.iter().for_each(|(name, value)| headers.append(name, value));
    encode::last_chunk_with_trailers(&mut wire, &headers);
    assert_eq!(decode(&wire, wire.len()), Some((payload, trailers, true)), "written and read again");
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Payload, trailers and whether the body is complete; `None` when it is refused.
fn decode(input: &[u8], step: usize) -> Option<(Vec<u8>, Fields, bool)> {
    let (mut decoder, mut headers) = (BodyDecoder::new(Framing::Chunked), Headers::default());
    let (mut payload, mut at) = (Vec::new(), 0);
    while at < input.len() && !decoder.is_done() {
        let end = (at + step).min(input.len());
        let decoded = decoder.decode_with_trailers(&input[at..end], &mut headers).ok()?;
        payload.extend_from_slice(&input[at..end][decoded.data.clone()]);
        assert!(decoded.consumed > 0, "goes on");
        at += decoded.consumed;
    }
    let fields = headers.iter().map(|(_, name, value)| (name.to_vec(), value.to_vec())).collect();
    Some((payload, fields, decoder.is_done()))
}
