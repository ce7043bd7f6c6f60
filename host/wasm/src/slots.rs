//! Where instances live: slots that are reserved once and used again.
//!
//! A call has a fresh instance, and mapping and unmapping its memories, tables and stack for each costs more than what most calls
//! do in them (ADR 0016). Slots are reserved as addresses when the engine starts and take memory when they are used. What a
//! guest has left in one is given back to the system or wiped before the next one enters.
//!
//! There are as many for the whole process as below. A backend has a share of them, so that none takes all, whatever its component
//! needs; who finds none waits within its deadline.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, component::Component};

use crate::limits::Limits;

const KIB: usize = 1 << 10;

/// Linear memories of all calls at once: eight backends with as many calls as they may have, where a component has one.
const MEMORIES: u32 = 512;
/// Tables that come with one memory, on the mean over a component. Rust's have two and one memory, CPython's 16.
const TABLES_EACH: u32 = 16;
/// Most memories of one call.
const CALL_MEMORIES: u32 = 64;
/// Most tables of one call.
const CALL_TABLES: u32 = 256;
/// Most core instances of one call.
const CALL_INSTANCES: u32 = 1_024;
/// Most elements of a table.
const ELEMENTS: usize = 100_000;
/// What the library keeps beside the memories of one instance, at most; it grows with the component's functions.
const METADATA: usize = 16 << 20;
/// Slots of one backend: its calls at once by default, where its component has one memory.
const SHARE: u32 = 64;
/// Slots that are used again before others are used for the first time.
const WARM: u32 = 16;
/// What an empty slot keeps of its memory, wiped; the rest goes back to the system. All of it for a small driver in Rust, whose
/// stack the linker is told to make small. At worst, after 512 calls at once, it is 176 MiB with what follows.
const KEPT_MEMORY: usize = 256 * KIB;
/// What an empty slot keeps of each of its tables, wiped.
const KEPT_TABLE: usize = 4 * KIB;
/// What an empty slot keeps of its stack, wiped.
const KEPT_STACK: usize = 32 * KIB;
/// Slots that are given back to the system together, on each processor; none of them is used again before.
const BATCH: usize = 32;

/// The slots of an engine that no backend has in use.
#[derive(Debug)]
pub(crate) struct Slots(Semaphore);

impl Default for Slots {
    fn default() -> Self {
        Self(Semaphore::new(MEMORIES as usize))
    }
}

/// The slots that one backend may have in use.
#[derive(Debug)]
pub(crate) struct Share {
    own: Semaphore,
    all: Arc<Slots>,
}

/// The slots of one call; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    _all: Option<SemaphorePermit<'a>>,
    _own: Option<SemaphorePermit<'a>>,
}

impl Share {
    /// One more backend's share.
    pub(crate) fn new(all: Arc<Slots>) -> Self {
        Self { own: Semaphore::new(SHARE as usize), all }
    }

    /// Waits for what a call of a component needs.
    pub(crate) async fn take(&self, needed: u32) -> Taken<'_> {
        // Nobody closes them; without a permit the library refuses what it has no room for.
        let own = self.own.acquire_many(needed).await.ok();
        let all = self.all.0.acquire_many(needed).await.ok();
        Taken { _all: all, _own: own }
    }
}

/// How many slots a call of a component needs.
pub(crate) fn needed(component: &Component) -> u32 {
    // Absent for components that import modules, which nobody offers them.
    let Some(resources) = component.resources_required() else { return 1 };
    resources.num_memories.max(resources.num_tables.div_ceil(TABLES_EACH)).clamp(1, SHARE)
}

/// Has an engine keep instances in slots.
pub(crate) fn reserve(config: &mut Config) {
    let mut slots = PoolingAllocationConfig::new();
    slots
        .total_memories(MEMORIES)
        .total_tables(MEMORIES * TABLES_EACH)
        .total_stacks(MEMORIES)
        .total_component_instances(MEMORIES)
        .total_core_instances(MEMORIES * CALL_INSTANCES)
        .max_memories_per_component(CALL_MEMORIES)
        .max_memories_per_module(CALL_MEMORIES)
        .max_tables_per_component(CALL_TABLES)
        .max_tables_per_module(CALL_TABLES)
        .max_core_instances_per_component(CALL_INSTANCES)
        .max_core_instance_size(METADATA)
        .max_component_instance_size(METADATA)
        .table_elements(ELEMENTS)
        .max_unused_warm_slots(WARM)
        .linear_memory_keep_resident(KEPT_MEMORY)
        .decommit_batch_size(BATCH)
        .table_keep_resident(KEPT_TABLE)
        .async_stack_keep_resident(KEPT_STACK)
        // Asking the kernel which pages were written misses those that it has put into swap.
        .pagemap_scan(Enabled::No);
    config.async_stack_zeroing(true);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(slots));
}

/// The limits that no operator can raise over what a slot has, each with its value and the most that it may be.
pub(crate) fn ceilings(limits: &Limits) -> [(&'static str, usize, usize); 4] {
    [
        ("instances", limits.instances, CALL_INSTANCES as usize),
        ("memories", limits.memories, CALL_MEMORIES as usize),
        ("tables", limits.tables, CALL_TABLES as usize),
        ("table-elements", limits.table_elements, ELEMENTS),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_backend_with_many_memories_leaves_the_others_theirs() {
        let all = Arc::new(Slots::default());
        let (greedy, quiet) = (Share::new(Arc::clone(&all)), Share::new(Arc::clone(&all)));
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(greedy.take(8).await);
        }
        let mut waiting = Box::pin(greedy.take(8));
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "its share is used up");
        let taken = quiet.take(1).await;
        assert_eq!(all.0.available_permits(), MEMORIES as usize - 65);
        held.pop();
        drop((waiting.await, taken, held));
        assert_eq!(all.0.available_permits(), MEMORIES as usize);
    }

    #[test]
    fn limits_above_what_a_slot_has_are_found() {
        let found =
            |limits: &Limits| ceilings(limits).into_iter().filter(|(_, value, most)| value > most).count();
        assert_eq!(found(&Limits::default()), 0);
        assert_eq!(found(&Limits { memories: 65, table_elements: 100_001, ..Limits::default() }), 2);
    }
}
