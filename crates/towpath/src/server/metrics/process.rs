//! Metrics of the process, under the names that all Prometheus clients use, and of the build.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Commit that the build names. A build from a working copy has none.
const COMMIT: &str = match option_env!("TOWPATH_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Reads what the system says of this process.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", COMMIT)];
        let mut builds = encoder.encode_descriptor(
            "towpath_build_info",
            "Version of this program",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(1_i64).encode(builds.encode_family(&labels)?)?;
        // A system without /proc has no such metrics.
        let Some(process) = ProcessFigures::read() else { return Ok(()) };
        let cpu = ConstCounter::new(process.cpu_seconds);
        let help = "Time on the processors in seconds";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;
        for (name, help, value) in [
            ("process_start_time_seconds", "Time of the start since 1970 in seconds", process.started),
            ("process_resident_memory_bytes", "Resident memory in bytes", process.resident),
            ("process_virtual_memory_bytes", "Virtual memory in bytes", process.virtual_memory),
            ("process_open_fds", "Open file descriptors", process.descriptors),
            ("process_max_fds", "Limit of open file descriptors", process.max_descriptors),
            ("process_threads", "Threads", process.threads),
        ] {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

/// Figures of this process.
struct ProcessFigures {
    cpu_seconds: f64,
    started: f64,
    resident: f64,
    virtual_memory: f64,
    descriptors: f64,
    max_descriptors: f64,
    threads: f64,
}

impl ProcessFigures {
    #[cfg(target_os = "linux")]
    #[expect(clippy::cast_precision_loss, reason = "Prometheus' values are floats")]
    fn read() -> Option<Self> {
        use procfs::process::{LimitValue, Process};

        let process = Process::myself().ok()?;
        let stat = process.stat().ok()?;
        let ticks = procfs::ticks_per_second() as f64;
        let max_descriptors = match process.limits().ok()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => limit as f64,
            LimitValue::Unlimited => f64::INFINITY,
        };
        Some(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
            started: procfs::boot_time_secs().ok()? as f64 + stat.starttime as f64 / ticks,
            resident: (stat.rss * procfs::page_size()) as f64,
            virtual_memory: stat.vsize as f64,
            descriptors: process.fd_count().ok()? as f64,
            max_descriptors,
            threads: stat.num_threads as f64,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn read() -> Option<Self> {
        None
    }
}
