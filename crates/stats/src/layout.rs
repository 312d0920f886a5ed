//! Layouts: the metrics that each kind of scope has.

use crate::histogram::ENVOY_BUCKETS;

/// One metric of a layout.
#[derive(Debug)]
pub struct Metric {
    /// Its name after the scope's prefix.
    pub name: &'static str,
    /// The text of `# HELP`; empty: no such line, as in Envoy's page.
    pub help: &'static str,
    /// Divisor from the counted unit to the unit in the name: 100 for kernel ticks shown as seconds. For counters.
    pub per_unit: u32,
    /// Upper bounds of a histogram's buckets, in ascending order and without the last, infinite one.
    pub bounds: &'static [f64],
}

impl Metric {
    /// Creates a metric without help. A histogram gets Envoy's buckets.
    pub const fn named(name: &'static str) -> Self {
        Self { name, help: "", per_unit: 1, bounds: &ENVOY_BUCKETS }
    }
}

/// The metrics of one kind of scope. Made by [`crate::layout!`].
pub trait Layout: 'static {
    /// Index of a counter.
    type Counter: Copy + Into<usize>;
    /// Index of a gauge.
    type Gauge: Copy + Into<usize>;
    /// Index of a histogram.
    type Histogram: Copy + Into<usize>;
    /// Counters, in order of their indices.
    const COUNTERS: &'static [Metric];
    /// Gauges, in order of their indices.
    const GAUGES: &'static [Metric];
    /// Histograms, in order of their indices; they record milliseconds unless documented otherwise.
    const HISTOGRAMS: &'static [Metric];
    /// Prefix of a counter per HTTP status: `upstream_rq_` gives `upstream_rq_503`. `None`: no such counters.
    const STATUS_PREFIX: Option<&'static str>;
    /// Whether a metric is only reported once something was counted in it, as Envoy does with names that come from messages.
    const ONCE_COUNTED: bool = false;
}

/// A [`Layout`] without its type, so that scopes of all layouts can be handled alike.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) counters: &'static [Metric],
    pub(crate) gauges: &'static [Metric],
    pub(crate) histograms: &'static [Metric],
    pub(crate) status_prefix: Option<&'static str>,
    pub(crate) once_counted: bool,
    /// Number of cells per histogram: the maximum number of buckets, one beyond them, and the sum.
    pub(crate) stride: usize,
    /// Whether the configuration sets the buckets, so that those of the layout are not used.
    pub(crate) is_chosen: bool,
}

impl Shape {
    /// Returns the shape with other bounds of its histograms.
    pub(crate) fn with_bounds(&self, bounds: impl Iterator<Item = &'static [f64]>) -> Self {
        let with = |(metric, bounds): (&Metric, _)| Metric { bounds, ..*metric };
        let histograms: &'static [Metric] = self.histograms.iter().zip(bounds).map(with).collect::<Vec<_>>().leak();
        Self { histograms, stride: stride(histograms), is_chosen: true, ..*self }
    }

    /// Whether both have the same metrics.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let same = |one: &[Metric], other: &[Metric]| {
            std::ptr::eq(one, other) || one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.name == b.name)
        };
        same(self.counters, other.counters)
            && same(self.gauges, other.gauges)
            && same(self.histograms, other.histograms)
            && self.status_prefix == other.status_prefix
    }
}

pub(crate) trait Shaped: Layout {
    const STRIDE: usize = stride(Self::HISTOGRAMS);
    const SHAPE: &'static Shape = &Shape {
        counters: Self::COUNTERS,
        gauges: Self::GAUGES,
        histograms: Self::HISTOGRAMS,
        status_prefix: Self::STATUS_PREFIX,
        once_counted: Self::ONCE_COUNTED,
        stride: Self::STRIDE,
        is_chosen: false,
    };
}

impl<L: Layout> Shaped for L {}

const fn stride(histograms: &[Metric]) -> usize {
    let (mut most, mut at) = (0, 0);
    while at < histograms.len() {
        if histograms[at].bounds.len() > most {
            most = histograms[at].bounds.len();
        }
        at += 1;
    }
    most + 2
}

/// Declares a [`Layout`]. The variants are spelled like the metrics, so that a search for a metric's name finds its uses. A
/// metric's doc comment is its `# HELP`; `in BOUNDS` gives a histogram other buckets than Envoy's; `/ N` shows a counter
/// divided by N.
///
/// ```
/// evenkeel_stats::layout! {
///     /// What is counted for a door.
///     pub mod door {
///         counters { opened_total }
///         gauges { open }
///         histograms { open_ms, width_cm in [60.0, 90.0] }
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
        counters { $($(#[doc = $counter_help:literal])* $counter:ident $(/ $per:literal)?),* $(,)? }
        gauges { $($(#[doc = $gauge_help:literal])* $gauge:ident),* $(,)? }
        histograms { $($(#[doc = $histogram_help:literal])* $histogram:ident $(in $bounds:expr)?),* $(,)? }
        statuses $statuses:expr
        $(; once_counted $once:literal)?
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
                const COUNTERS: &'static [$crate::Metric] = &[$($crate::Metric {
                    help: concat!($($counter_help),*),
                    $(per_unit: $per,)?
                    ..$crate::Metric::named(stringify!($counter))
                }),*];
                const GAUGES: &'static [$crate::Metric] = &[$($crate::Metric {
                    help: concat!($($gauge_help),*),
                    ..$crate::Metric::named(stringify!($gauge))
                }),*];
                const HISTOGRAMS: &'static [$crate::Metric] = &[$($crate::Metric {
                    help: concat!($($histogram_help),*),
                    $(bounds: &$bounds,)?
                    ..$crate::Metric::named(stringify!($histogram))
                }),*];
                const STATUS_PREFIX: Option<&'static str> = $statuses;
                $(const ONCE_COUNTED: bool = $once;)?
            }
        }
    };
}
