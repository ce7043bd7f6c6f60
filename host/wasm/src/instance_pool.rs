//! The pool of instance slots, reserved at start and reused.
//!
//! Every call has a new instance. Mapping and unmapping its memories, tables and stack would cost more than
//! most calls (ADR 0016). Slots are address ranges that are reserved when the engine starts, and use memory
//! once they are used. Before a slot is reused, its content is returned to the system or zeroed.
//!
//! The slots are shared by the whole process. A backend has a quota of them, so that none can use all;
//! further calls wait until their deadline. If the address ranges cannot be reserved, wasmtime allocates each
//! instance on demand; the number of slots still limits the concurrent calls.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, component::Component};

use crate::limits::Limits;

const KIB: usize = 1 << 10;

/// Maximum linear memories of all calls: eight backends at their maximum concurrency, with one memory each.
const POOL_MEMORIES: u32 = 512;
/// Tables that are reserved for each memory. Rust's components have two tables and one memory; CPython's have
/// 16.
const TABLES_PER_MEMORY: u32 = 16;
/// Most memories of one call.
const MAX_MEMORIES_PER_CALL: u32 = 64;
/// Most tables of one call.
const MAX_TABLES_PER_CALL: u32 = 256;
/// Most core instances of one call.
const MAX_INSTANCES_PER_CALL: u32 = 1_024;
/// Most elements of a table.
const MAX_TABLE_ELEMENTS: usize = 100_000;
/// Maximum bytes of wasmtime's metadata of one instance, without its memories. The metadata grows with the
/// number of the component's functions.
const MAX_INSTANCE_METADATA: usize = 16 << 20;
/// Maximum slots of one backend: enough for the default limit of concurrent calls with one memory each.
const DRIVER_QUOTA: u32 = 64;
/// Number of free slots that wasmtime keeps for the WebAssembly modules that used them last. From this number
/// on, an instance of another module takes one of these slots; below it, a slot that was never used.
const WARM_SLOTS: u32 = 16;
/// Bytes of its linear memory that a free slot keeps, zeroed; the rest is returned to the system. 256 KiB
/// hold the whole memory of a small driver in Rust with a small stack. In the worst case, after 512
/// concurrent calls, all slots together keep 176 MiB: linear memories, tables and stacks.
const RESIDENT_MEMORY: usize = 256 * KIB;
/// Bytes of each of its tables that a free slot keeps, zeroed.
const RESIDENT_TABLE: usize = 4 * KIB;
/// Bytes of its stack that a free slot keeps, zeroed.
const RESIDENT_STACK: usize = 32 * KIB;
/// Number of freed slots whose memory is returned to the system together. Each processor, up to 16, collects
/// a batch of its own. A freed slot is not reused before its memory is returned.
const DECOMMIT_BATCH: usize = 32;

/// Counts the free instance slots of an engine, which all backends share. The slots themselves are in
/// wasmtime's pooling allocator.
#[derive(Debug)]
pub(crate) struct InstancePool(Semaphore);

impl Default for InstancePool {
    fn default() -> Self {
        Self(Semaphore::new(POOL_MEMORIES as usize))
    }
}

/// Limits the slots that one backend uses at the same time.
#[derive(Debug)]
pub(crate) struct InstanceQuota {
    quota: Semaphore,
    pool: Arc<InstancePool>,
}

/// The permit for the instance slots of one call. Dropping the permit frees the slots.
#[derive(Debug)]
pub(crate) struct InstancePermit<'a> {
    _pool_permit: Option<SemaphorePermit<'a>>,
    _quota_permit: Option<SemaphorePermit<'a>>,
}

impl InstanceQuota {
    /// Creates the quota of one backend.
    pub(crate) fn new(pool: Arc<InstancePool>) -> Self {
        Self { quota: Semaphore::new(DRIVER_QUOTA as usize), pool }
    }

    /// Waits for the slots of one call.
    pub(crate) async fn acquire(&self, instances: u32) -> InstancePermit<'_> {
        // The semaphores are never closed. Without a permit wasmtime itself rejects instances above its
        // limit.
        let quota_permit = self.quota.acquire_many(instances).await.ok();
        let pool_permit = self.pool.0.acquire_many(instances).await.ok();
        InstancePermit { _pool_permit: pool_permit, _quota_permit: quota_permit }
    }
}

/// Number of instance slots that a call of a component needs, from 1 to `DRIVER_QUOTA`. A slot has one linear
/// memory and `TABLES_PER_MEMORY` tables.
pub(crate) fn required_instances(component: &Component) -> u32 {
    // Absent for components that import modules, which the host does not offer.
    let Some(resources) = component.resources_required() else { return 1 };
    resources.num_memories.max(resources.num_tables.div_ceil(TABLES_PER_MEMORY)).clamp(1, DRIVER_QUOTA)
}

/// Configures an engine to use pooled slots.
pub(crate) fn configure_pooling(config: &mut Config) {
    let mut pooling = PoolingAllocationConfig::new();
    pooling
        .total_memories(POOL_MEMORIES)
        .total_tables(POOL_MEMORIES * TABLES_PER_MEMORY)
        .total_stacks(POOL_MEMORIES)
        .total_component_instances(POOL_MEMORIES)
        .total_core_instances(POOL_MEMORIES * MAX_INSTANCES_PER_CALL)
        .max_memories_per_component(MAX_MEMORIES_PER_CALL)
        .max_memories_per_module(MAX_MEMORIES_PER_CALL)
        .max_tables_per_component(MAX_TABLES_PER_CALL)
        .max_tables_per_module(MAX_TABLES_PER_CALL)
        .max_core_instances_per_component(MAX_INSTANCES_PER_CALL)
        .max_core_instance_size(MAX_INSTANCE_METADATA)
        .max_component_instance_size(MAX_INSTANCE_METADATA)
        .table_elements(MAX_TABLE_ELEMENTS)
        .max_unused_warm_slots(WARM_SLOTS)
        .linear_memory_keep_resident(RESIDENT_MEMORY)
        .decommit_batch_size(DECOMMIT_BATCH)
        .table_keep_resident(RESIDENT_TABLE)
        .async_stack_keep_resident(RESIDENT_STACK)
        // Asking the kernel which pages were written misses those that it has put into swap.
        .pagemap_scan(Enabled::No);
    config.async_stack_zeroing(true);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling));
}

/// The configured limits that the pool bounds for one call: name, configured value and the pool's maximum.
pub(crate) fn limit_maxima(limits: &Limits) -> [(&'static str, usize, usize); 4] {
    [
        ("instances", limits.instances, MAX_INSTANCES_PER_CALL as usize),
        ("memories", limits.memories, MAX_MEMORIES_PER_CALL as usize),
        ("tables", limits.tables, MAX_TABLES_PER_CALL as usize),
        ("table-elements", limits.table_elements, MAX_TABLE_ELEMENTS),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn instance_quota_keeps_capacity_for_other_backends() {
        let all = Arc::new(InstancePool::default());
        let (greedy, quiet) = (InstanceQuota::new(Arc::clone(&all)), InstanceQuota::new(Arc::clone(&all)));
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(greedy.acquire(8).await);
        }
        let mut waiting = Box::pin(greedy.acquire(8));
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "its share is used up");
        let taken = quiet.acquire(1).await;
        assert_eq!(all.0.available_permits(), POOL_MEMORIES as usize - 65);
        held.pop();
        drop((waiting.await, taken, held));
        assert_eq!(all.0.available_permits(), POOL_MEMORIES as usize);
    }

    #[test]
    fn limits_above_the_pool_maximum_are_found() {
        let found = |limits: &Limits| {
            limit_maxima(limits).into_iter().filter(|(_, value, most)| value > most).count()
        };
        assert_eq!(found(&Limits::default()), 0);
        assert_eq!(found(&Limits { memories: 65, table_elements: 100_001, ..Limits::default() }), 2);
    }
}
