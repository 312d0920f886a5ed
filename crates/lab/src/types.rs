//! The xDS resource types.

use evenkeel_xds::type_url;

/// The types that a proxy subscribes to, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// CDS.
    Cluster,
    /// EDS.
    Endpoint,
    /// LDS.
    Listener,
    /// RDS.
    Route,
    /// VHDS.
    VirtualHost,
    /// NDS.
    Name,
}

impl Type {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Cluster, Self::Endpoint, Self::Listener, Self::Route, Self::VirtualHost, Self::Name];

    /// The type URL on the wire.
    pub fn url(self) -> &'static str {
        match self {
            Self::Cluster => type_url::CLUSTER,
            Self::Endpoint => type_url::ENDPOINT,
            Self::Listener => type_url::LISTENER,
            Self::Route => type_url::ROUTE,
            Self::VirtualHost => "type.googleapis.com/envoy.config.route.v3.VirtualHost",
            Self::Name => type_url::NAME_TABLE,
        }
    }

    /// The type with this URL.
    pub fn of_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// Its index in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}
