//! Available capacity.

use cofferdam_guest::{
    Result,
    abilities::{CapacityReport, CapacityRequest},
    state::Store,
};

use crate::{
    records::{MemoryCall, StorageUsage, VersionedStorageUsage},
    request::{self, CONDITION, LABEL},
    settings::{MAX_TOTAL, MemorySettings},
    topology::TopologySegment,
};

/// Returns the free capacity of the segments that match the request's topology. Without a topology in the
/// request: of all segments, or of the whole storage if the driver has no topology.
pub(crate) fn available<S: Store>(
    call: &MemoryCall<'_, S>,
    request: &CapacityRequest,
) -> Result<CapacityReport> {
    request::parse_parameters(&request.parameters, &[LABEL, CONDITION])?;
    if !request.capabilities.is_empty() {
        request::canonical_capabilities(&request.capabilities, call.settings)?;
    }
    let topology = &call.settings.topology;
    let candidates: Vec<Option<&TopologySegment>> = match &request.topology {
        Some(segments) => topology.matching_segments(segments)?.into_iter().map(Some).collect(),
        None if topology.keys.is_empty() => vec![None],
        None => topology.segments.iter().map(Some).collect(),
    };
    let usage = VersionedStorageUsage::read(call.store)?.usage;
    let free = || candidates.iter().map(|segment| free_bytes(call.settings, &usage, *segment));
    let largest = free().max().unwrap_or_default();
    let sum = free().fold(0, u64::saturating_add).min(MAX_TOTAL.saturating_sub(usage.bytes));
    Ok(CapacityReport {
        available_bytes: if call.settings.is_total_capacity() { largest } else { sum },
        maximum_volume_bytes: Some(largest.min(request::MAX_SIZE)),
        minimum_volume_bytes: (largest > 0).then_some(1),
    })
}

/// Free bytes of a segment, or of the whole storage if the driver has no topology.
fn free_bytes(settings: &MemorySettings, usage: &StorageUsage, segment: Option<&TopologySegment>) -> u64 {
    let used = if settings.is_total_capacity() { usage.bytes } else { usage.used_bytes(segment) };
    let total_left = MAX_TOTAL.saturating_sub(usage.bytes);
    settings.capacity_limit(segment).saturating_sub(used).min(total_left)
}
