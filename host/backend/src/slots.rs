//! Where instances live: slots that are reserved once and used again.
//!
//! A call has a fresh instance, and mapping and unmapping its memories, tables and stack for each costs more than what most calls
//! do in them (ADR 0016). Slots are reserved as addresses when the engine starts and take memory when they are used; what a
//! guest leaves in one is wiped before the next one enters. There are as many for the whole process as below; who finds
//! none waits within its deadline, and no backend takes more of them than it has calls at once.

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
const METADATA: usize = 4 << 20;
/// Slots that keep their pages when they are empty: what two processors use at once, with some room. The others give theirs
/// back to the system.
const WARM: u32 = 16;
/// Memory that an empty warm slot keeps, of its linear memory, each of its tables, and its stack.
const KEPT: [usize; 3] = [512 * KIB, 16 * KIB, 64 * KIB];

/// The slots of an engine that no call has.
#[derive(Debug)]
pub(crate) struct Slots(Semaphore);

/// The slots of one call; given back when it is dropped.
pub(crate) type Taken<'a> = Option<SemaphorePermit<'a>>;

impl Default for Slots {
    fn default() -> Self {
        Self(Semaphore::new(MEMORIES as usize))
    }
}

impl Slots {
    /// Waits for what a call of a component needs.
    pub(crate) async fn take(&self, needed: u32) -> Taken<'_> {
        // Nobody closes it; without a permit the library refuses what it has no room for.
        self.0.acquire_many(needed).await.ok()
    }
}

/// How many slots a call of a component needs.
pub(crate) fn needed(component: &Component) -> u32 {
    // Absent for components that import modules, which nobody offers them.
    let Some(resources) = component.resources_required() else { return 1 };
    resources.num_memories.max(resources.num_tables.div_ceil(TABLES_EACH)).clamp(1, MEMORIES)
}

/// Has an engine keep instances in slots.
pub(crate) fn reserve(config: &mut Config) {
    let [memory, table, stack] = KEPT;
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
        .linear_memory_keep_resident(memory)
        .table_keep_resident(table)
        .async_stack_keep_resident(stack)
        .pagemap_scan(Enabled::Auto);
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
