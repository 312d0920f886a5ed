//! Checks that hash tables equal Envoy's: the file was recorded from Envoy 1.40, and `interop::hashing` in the crate
//! `evenkeel` compares it with a running Envoy.

use std::sync::Arc;

use evenkeel_runtime_config::Cluster;
use evenkeel_runtime_config::cluster::{HashFunction, HashKey, LoadBalancer, Maglev, RingHash};
use evenkeel_runtime_config::hash::xxhash64;

use super::fixture::{cluster, host_with};
use super::{HostSet, Making, Target};
use crate::random::Random;

const RECORDED: &str = include_str!("../../tests/golden/hash_tables.txt");

#[test]
fn the_same_keys_go_to_the_same_hosts_as_in_envoy() {
    let lines: Vec<&str> = RECORDED.lines().collect();
    assert!(lines.len() >= 20, "the file holds a line per scene and a line of hosts");
    for pair in lines.chunks(2) {
        let [scene, expected] = pair else { panic!("a scene without hosts: {pair:?}") };
        assert_eq!(picked(scene), *expected, "{scene}");
    }
}

/// The host numbers for the keys `key-0`, `key-1`, ….
fn picked(scene: &str) -> String {
    let (words, weights) = scene.rsplit_once(' ').expect("weights at the end");
    let hosts: Vec<_> = weights
        .split(';')
        .enumerate()
        .flat_map(|(region, group)| {
            let (weights, locality_weight) = group.split_once('@').unwrap_or((group, "0"));
            weights.split(',').map(move |weight| (region, number(weight), number(locality_weight)))
        })
        .zip(0..)
        .map(|((region, weight, locality_weight), place)| {
            host_with(place, |endpoint| {
                endpoint.weight = weight as u32;
                endpoint.locality = format!("r{region}").into();
                endpoint.locality_weight = locality_weight as u32;
                endpoint.hash_key = Some(format!("10.1.0.{place}:8080").into());
            })
        })
        .collect();
    let config =
        Cluster { load_balancer: balancer(words), locality_weighted: weights.contains('@'), ..cluster(&hosts) };
    let (random, tables) = (Random::seeded(1), Arc::default());
    let set = HostSet::new(hosts, Making { config: &config, random: &random, tables: &tables, zones: None });
    let host = |key: usize| {
        let hash = Some(xxhash64(format!("key-{key}").as_bytes(), 0));
        let picked = set.pick(&Target { hash, ..Target::default() }, &random).host.cloned();
        picked.and_then(|host| host.socket_addr()).map_or("none".to_owned(), |address| address.port().to_string())
    };
    (0..256).map(host).collect()
}

fn balancer(words: &str) -> LoadBalancer {
    let (key, balance_factor) = (HashKey::Address, 0);
    match words.split(' ').collect::<Vec<_>>().as_slice() {
        ["ring", function, min, max] => LoadBalancer::RingHash(RingHash {
            min_size: number(min),
            max_size: number(max),
            function: if *function == "xx_hash" { HashFunction::XxHash } else { HashFunction::MurmurHash2 },
            key,
            balance_factor,
        }),
        ["maglev", size] => LoadBalancer::Maglev(Maglev { table_size: number(size), key, balance_factor }),
        other => panic!("{other:?} is no balancer"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}
