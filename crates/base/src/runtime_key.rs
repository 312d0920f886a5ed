//! Runtime keys of the proxy (`layered_runtime` of its bootstrap, `runtimeValues` of ProxyConfig).

/// A key with an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKey<'k> {
    /// Maximum number of downstream connections of the process.
    GlobalConnections,
    /// Number of streams of a connection that are checked for premature resets.
    PrematureResetStreams,
    /// Age in seconds below which the reset of a stream is premature.
    PrematureResetSeconds,
    /// Maximum number of connections of a listener.
    ListenerConnections(&'k str),
    /// Maximum number of requests in flight of a listener.
    ListenerRequests(&'k str),
    /// Maximum size of the buffers of a listener's connections, in bytes.
    ListenerMemory(&'k str),
}

/// All keys, as users write them; `NAME` is that of a listener.
pub const RUNTIME_KEYS: [&str; 6] = [
    "overload.global_downstream_max_connections",
    "overload.premature_reset_total_stream_count",
    "overload.premature_reset_min_stream_lifetime_seconds",
    "envoy.resource_limits.listener.NAME.connection_limit",
    "evenkeel.resource_limits.listener.NAME.request_limit",
    "evenkeel.resource_limits.listener.NAME.memory_limit",
];

impl<'k> RuntimeKey<'k> {
    /// The key of this name; `None`: only another proxy may have it.
    pub fn parse(key: &'k str) -> Option<Self> {
        let [connections, streams, seconds, of_listeners @ ..] = RUNTIME_KEYS;
        if let Some((_, fixed)) = [
            (connections, Self::GlobalConnections),
            (streams, Self::PrematureResetStreams),
            (seconds, Self::PrematureResetSeconds),
        ]
        .into_iter()
        .find(|(known, _)| *known == key)
        {
            return Some(fixed);
        }
        let makes = [Self::ListenerConnections, Self::ListenerRequests, Self::ListenerMemory];
        of_listeners.into_iter().zip(makes).find_map(|(known, make)| {
            let (start, end) = known.split_once("NAME")?;
            let listener = key.strip_prefix(start)?.strip_suffix(end)?;
            (!listener.is_empty()).then(|| make(listener))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_names() {
        let check = |key: &str, expected: Option<RuntimeKey<'_>>| assert_eq!(RuntimeKey::parse(key), expected, "{key}");
        check("overload.global_downstream_max_connections", Some(RuntimeKey::GlobalConnections));
        check("overload.premature_reset_total_stream_count", Some(RuntimeKey::PrematureResetStreams));
        check("overload.premature_reset_min_stream_lifetime_seconds", Some(RuntimeKey::PrematureResetSeconds));
        let limits = "envoy.resource_limits.listener.";
        check(&format!("{limits}0.0.0.0_80.connection_limit"), Some(RuntimeKey::ListenerConnections("0.0.0.0_80")));
        check(&format!("{limits}.connection_limit"), None);
        check(&format!("{limits}connection_limit"), None);
        check(&format!("{limits}a.request_limit"), None);
        check("evenkeel.resource_limits.listener.a.request_limit", Some(RuntimeKey::ListenerRequests("a")));
        check("evenkeel.resource_limits.listener.a.memory_limit", Some(RuntimeKey::ListenerMemory("a")));
        check("envoy.reloadable_features.x", None);
        check("", None);
    }
}
