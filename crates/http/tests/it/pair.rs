//! The codec against itself: messages arrive as they were sent, however the bytes are split.

use evenkeel_http::h2::Options;
use evenkeel_testkit::Random;

use crate::endpoint::{Endpoint, assert_repeated, narrow};
use crate::messages::Message;

/// Carries pieces of random size between the two until the client has its answers. At each step an end may announce another window.
fn exchange(seed: u64, client: Options, server: Options, count: usize, windows: &[u32]) {
    let mut random = Random::new(seed);
    let messages: Vec<Message> = (0..count).map(|number| Message::random(&mut random, number)).collect();
    let mut client = Endpoint::client(client, messages);
    let mut server = Endpoint::server(server);
    client.pump();
    for _ in 0..2_000_000 {
        if client.is_done() {
            return assert_repeated(&client.answered, count);
        }
        let (from, to) = if random.below(2) == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let most = random.pick(&[1, 9, 100, 20_000, 100_000]);
        let piece = from.connection.output();
        let piece = piece[..piece.len().min(1 + random.below(most))].to_vec();
        from.connection.written(piece.len());
        from.pump();
        to.turn(&piece);
        if !windows.is_empty() && random.below(20) == 0 {
            to.connection.announce_stream_window(random.pick(windows));
        }
    }
    panic!("the exchange stands still (seed {seed})");
}

#[test]
fn messages_arrive_as_they_were_sent() {
    for seed in 0..20 {
        exchange(seed, narrow(), narrow(), 40, &[]);
    }
    for seed in 20..30 {
        exchange(seed, Options::default(), narrow(), 60, &[]);
        exchange(seed, narrow(), Options::default(), 60, &[]);
    }
}

/// Smaller ones included, below what is on its way: nobody breaks a window he cannot know of, and none stays shut.
#[test]
fn windows_change_under_streams() {
    for seed in 0..20 {
        exchange(seed, narrow(), narrow(), 40, &[1_000, 16_384, 65_535, 200_000]);
    }
}
