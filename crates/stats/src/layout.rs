//! The fixed set of metrics of a kind of scope.

/// Names of the metrics of one kind of scope. Implemented by [`crate::layout!`].
pub trait Layout: 'static {
    /// Index of a counter.
    type Counter: Copy + Into<usize>;
    /// Index of a gauge.
    type Gauge: Copy + Into<usize>;
    /// Index of a histogram.
    type Histogram: Copy + Into<usize>;
    /// Counter names, in order of their indices.
    const COUNTERS: &'static [&'static str];
    /// Gauge names, in order of their indices.
    const GAUGES: &'static [&'static str];
    /// Histogram names, in order of their indices; they record milliseconds unless the owner says otherwise.
    const HISTOGRAMS: &'static [&'static str];
    /// A counter per HTTP status, reported as this name and the status (`upstream_rq_` → `upstream_rq_503`).
    const STATUS_PREFIX: Option<&'static str>;
    /// A metric is reported once something was counted in it, as Envoy does with names that come from messages.
    const ONCE_COUNTED: bool = false;
}

/// Declares a [`Layout`]. The variants are spelled as the metrics are, so that a search for a metric's name finds its use.
///
/// ```
/// evenkeel_stats::layout! {
///     /// What is counted for a door.
///     pub mod door {
///         counters { opened_total }
///         gauges { open }
///         histograms { open_ms }
///         statuses None
///     }
/// }
/// let registry = evenkeel_stats::Registry::new();
/// let scope = registry.scope::<door::Stats>(evenkeel_stats::ScopeName::plain("door."));
/// let writer = scope.writer();
/// writer.inc(door::Counter::opened_total);
/// assert!(registry.text().contains("door.opened_total: 1"));
/// ```
#[macro_export]
macro_rules! layout {
    ($(#[$doc:meta])* pub mod $name:ident {
        counters { $($counter:ident),* $(,)? }
        gauges { $($gauge:ident),* $(,)? }
        histograms { $($histogram:ident),* $(,)? }
        statuses $statuses:expr
    }) => {
        $(#[$doc])*
        #[allow(missing_docs, non_camel_case_types, clippy::empty_enums, clippy::manual_non_exhaustive)]
        pub mod $name {
            /// The layout.
            #[derive(Debug)]
            pub struct Stats;
            /// Counters.
            #[derive(Debug, Clone, Copy)]
            #[repr(usize)]
            pub enum Counter { $($counter,)* #[doc(hidden)] __End }
            /// Gauges.
            #[derive(Debug, Clone, Copy)]
            #[repr(usize)]
            pub enum Gauge { $($gauge,)* #[doc(hidden)] __End }
            /// Histograms.
            #[derive(Debug, Clone, Copy)]
            #[repr(usize)]
            pub enum Histogram { $($histogram,)* #[doc(hidden)] __End }
            impl From<Counter> for usize { #[inline] fn from(index: Counter) -> usize { index as usize } }
            impl From<Gauge> for usize { #[inline] fn from(index: Gauge) -> usize { index as usize } }
            impl From<Histogram> for usize { #[inline] fn from(index: Histogram) -> usize { index as usize } }
            impl $crate::Layout for Stats {
                type Counter = Counter;
                type Gauge = Gauge;
                type Histogram = Histogram;
                const COUNTERS: &'static [&'static str] = &[$(stringify!($counter)),*];
                const GAUGES: &'static [&'static str] = &[$(stringify!($gauge)),*];
                const HISTOGRAMS: &'static [&'static str] = &[$(stringify!($histogram)),*];
                const STATUS_PREFIX: Option<&'static str> = $statuses;
            }
        }
    };
}
