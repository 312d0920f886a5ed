//! Per-worker counters, gauges and histograms; Prometheus text
