//! Limits of one backend, and of one call.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wasmtime::ResourceLimiter;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Limits of one backend, and of each of its calls. The defaults fit the measured guests of all languages.
/// The configuration may change single limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limits {
    /// Maximum linear memory of one call in bytes, summed over all memories of the component. No measured
    /// guest needs more than 17 MiB.
    pub memory_bytes: usize,
    /// Maximum CPU time of one call, in milliseconds; waiting does not count. Checked every 10 ms.
    pub cpu_ms: u64,
    /// Maximum duration of one call, in milliseconds, including its wait for other calls. The caller's own
    /// deadline may be shorter.
    pub deadline_ms: u64,
    /// Maximum bytes that the guest passes to the host at once: its result, or all arguments of one call of
    /// an import.
    pub result_bytes: usize,
    /// Maximum bytes that one call may write to the log. The call's standard output and error together have a
    /// separate limit of the same size. In the log, each line and each field counts 16 bytes more, and each
    /// byte of a field's value counts six times.
    pub log_bytes: usize,
    /// Maximum bytes of a component's file.
    pub file_bytes: u64,
    /// Maximum concurrent calls of the backend; further calls wait until their deadline.
    pub concurrent_calls: usize,
    /// Maximum running and waiting calls of the backend; further calls fail immediately.
    pub queued_calls: usize,
    /// Maximum bytes of all entries of the `state` import: keys and values, plus 160 bytes for each entry.
    pub state_bytes: usize,
    /// Maximum keys of the backend's `session` import. A key counts once for each set of secrets that uses
    /// it.
    pub session_keys: usize,
    /// Maximum lifetime of a value of the `session` import, in milliseconds.
    pub session_ttl_ms: u64,
    /// Maximum bytes of the body of one request of the `http` import.
    pub http_request_bytes: usize,
    /// Maximum bytes of the body of one response of the `http` import; `result_bytes` limits it too.
    pub http_response_bytes: usize,
    /// Maximum concurrent requests of the backend's `http` import; further requests fail immediately.
    pub http_exchanges: usize,
    /// Maximum duration of one request of the `http` import, in milliseconds. A request may outlive its call.
    pub http_timeout_ms: u64,
    /// Maximum core instances of one call: limits the cost of composed components.
    pub instances: usize,
    /// Maximum linear memories of one call.
    pub memories: usize,
    /// Maximum tables of one call.
    pub tables: usize,
    /// Maximum elements of one table.
    pub table_elements: usize,
    /// Maximum concurrent resource handles of one call.
    pub handles: usize,
    /// Consecutive failures (trap, exit, time-out, exceeded limit, panic of the host) of one volume, snapshot
    /// or method after which its circuit opens, and number of different ones that fail in succession after
    /// which the circuit of the backend opens; 0 counts as 1.
    pub breaker_failures: u32,
    /// First delay of an open circuit, in milliseconds; doubled after each failed trial, up to 60 times this.
    pub breaker_pause_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 * MIB,
            cpu_ms: 5_000,
            deadline_ms: 60_000,
            result_bytes: 4 * MIB,
            log_bytes: 64 * KIB,
            file_bytes: 64 << 20,
            concurrent_calls: 64,
            // Sixteen rounds of callers: with calls of a second each, the last of them is still served within
            // a minute.
            queued_calls: 1_024,
            // About a hundred thousand volumes of the memory backend.
            state_bytes: 64 * MIB,
            session_keys: 1_024,
            session_ttl_ms: 3_600_000,
            http_request_bytes: MIB,
            http_response_bytes: 4 * MIB,
            http_exchanges: 16,
            http_timeout_ms: 30_000,
            // CPython alone is 38: its interpreter, its libraries and their tables.
            instances: 128,
            memories: 8,
            tables: 16,
            table_elements: 20_000,
            handles: 1_024,
            breaker_failures: 5,
            breaker_pause_ms: 1_000,
        }
    }
}

/// Period of the engine's epoch clock. Guests yield their thread and are stopped at its ticks, so it is also
/// the resolution of their CPU limit.
pub(crate) const EPOCH_TICK: Duration = Duration::from_millis(10);

impl Limits {
    /// Maximum duration of one call.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    /// Every limit by its name in the configuration.
    pub(crate) fn entries(&self) -> [(&'static str, u64); 22] {
        let to_u64 = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        [
            ("memory-bytes", to_u64(self.memory_bytes)),
            ("cpu-ms", self.cpu_ms),
            ("deadline-ms", self.deadline_ms),
            ("result-bytes", to_u64(self.result_bytes)),
            ("log-bytes", to_u64(self.log_bytes)),
            ("file-bytes", self.file_bytes),
            ("concurrent-calls", to_u64(self.concurrent_calls)),
            ("queued-calls", to_u64(self.queued_calls)),
            ("state-bytes", to_u64(self.state_bytes)),
            ("session-keys", to_u64(self.session_keys)),
            ("session-ttl-ms", self.session_ttl_ms),
            ("http-request-bytes", to_u64(self.http_request_bytes)),
            ("http-response-bytes", to_u64(self.http_response_bytes)),
            ("http-exchanges", to_u64(self.http_exchanges)),
            ("http-timeout-ms", self.http_timeout_ms),
            ("instances", to_u64(self.instances)),
            ("memories", to_u64(self.memories)),
            ("tables", to_u64(self.tables)),
            ("table-elements", to_u64(self.table_elements)),
            ("handles", to_u64(self.handles)),
            ("breaker-failures", u64::from(self.breaker_failures)),
            ("breaker-pause-ms", self.breaker_pause_ms),
        ]
    }

    /// Maximum CPU time of one call.
    pub(crate) fn cpu_budget(&self) -> Duration {
        Duration::from_millis(self.cpu_ms)
    }
}

/// A limit that a call exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceededLimit {
    /// The limit `memory-bytes`.
    Memory,
    /// The limit `table-elements`.
    TableElements,
}

/// Enforces the limits of one call's memories, tables and instances.
#[derive(Debug)]
pub(crate) struct StoreLimiter {
    max_memory: usize,
    used_memory: usize,
    peak_memory: usize,
    exceeded_limit: Option<ExceededLimit>,
    /// The last growth of a memory that was allowed, in bytes; reverted if the allocation itself fails.
    last_growth: usize,
    max_table_elements: usize,
    max_instances: usize,
    max_tables: usize,
    max_memories: usize,
}

impl StoreLimiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            max_memory: limits.memory_bytes,
            used_memory: 0,
            peak_memory: 0,
            exceeded_limit: None,
            last_growth: 0,
            max_table_elements: limits.table_elements,
            max_instances: limits.instances,
            max_tables: limits.tables,
            max_memories: limits.memories,
        }
    }

    /// Peak linear memory of the call, in bytes.
    pub(crate) fn peak_memory(&self) -> usize {
        self.peak_memory
    }

    /// The limit that the call's last rejected growth of a memory or table exceeded; `None` if none was
    /// rejected.
    pub(crate) fn exceeded_limit(&self) -> Option<ExceededLimit> {
        self.exceeded_limit
    }
}

impl ResourceLimiter for StoreLimiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let sum = self.used_memory.saturating_add(growth);
        if sum > self.max_memory {
            self.exceeded_limit = Some(ExceededLimit::Memory);
            return Ok(false);
        }
        self.used_memory = sum;
        self.peak_memory = self.peak_memory.max(sum);
        self.last_growth = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.used_memory = self.used_memory.saturating_sub(std::mem::take(&mut self.last_growth));
        Ok(())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let allowed = desired <= self.max_table_elements;
        if !allowed {
            self.exceeded_limit = Some(ExceededLimit::TableElements);
        }
        Ok(allowed)
    }

    fn instances(&self) -> usize {
        self.max_instances
    }

    fn tables(&self) -> usize {
        self.max_tables
    }

    fn memories(&self) -> usize {
        self.max_memories
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(bytes: usize) -> StoreLimiter {
        StoreLimiter::new(&Limits { memory_bytes: bytes, ..Limits::default() })
    }

    #[test]
    fn entries_cover_every_configuration_key() {
        let limits = Limits::default();
        let entries = limits.entries().map(|(name, value)| (name.to_owned(), value.into()));
        let told = serde_json::Value::Object(entries.into_iter().collect());
        assert_eq!(told, serde_json::to_value(&limits).unwrap());
    }

    #[test]
    fn memory_is_summed_over_memories() {
        let mut meter = limiter(100);
        assert!(meter.memory_growing(0, 60, None).unwrap());
        assert!(!meter.memory_growing(0, 50, None).unwrap());
        assert!(meter.memory_growing(60, 100, None).unwrap());
        assert_eq!((meter.peak_memory(), meter.exceeded_limit()), (100, Some(ExceededLimit::Memory)));
    }

    #[test]
    fn failed_memory_growth_is_not_counted() {
        let mut meter = limiter(100);
        assert!(meter.memory_growing(0, 90, None).unwrap());
        meter.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        assert!(meter.memory_growing(0, 100, None).unwrap());
        assert_eq!(meter.exceeded_limit(), None);
    }

    #[test]
    fn exceeded_limit_names_memory_or_table() {
        let mut meter = limiter(100);
        assert!(meter.table_growing(0, 20_000, None).unwrap());
        assert_eq!(meter.exceeded_limit(), None);
        assert!(!meter.table_growing(0, 20_001, None).unwrap());
        assert_eq!(meter.exceeded_limit(), Some(ExceededLimit::TableElements));
    }
}
