//! Volume expansion.

use cofferdam_guest::{
    Result, StorageError,
    abilities::{ExpandRequest, ExpandResponse},
    state::{self, Decision, Store, Versioned, decide},
};

use crate::{
    records::{MemoryCall, VersionedStorageUsage, read_volume, volume_key},
    request, volumes,
};

/// Expands a volume to at least the required size.
pub(crate) fn expand<S: Store>(call: &MemoryCall<'_, S>, request: &ExpandRequest) -> Result<ExpandResponse> {
    request::require_id("volume handle", &request.handle)?;
    if let Some(capability) = &request.capability {
        request::canonical_capability(capability, call.settings)?;
    }
    decide(call.store, |_| {
        let Versioned { value: mut volume, version } = read_volume(call.store, &request.handle)?;
        let size = request::choose_expanded_size(request.capacity, volume.size)?;
        let expanded = ExpandResponse { capacity_bytes: size, node_expansion: volume.is_filesystem() };
        let additional = size.saturating_sub(volume.size);
        if additional == 0 {
            return Ok(Decision::Done(expanded));
        }
        if let Some(node) = volume.nodes.keys().next()
            && !call.settings.features.online_expansion
        {
            return Err(StorageError::failed_precondition(format!(
                "the volume {:?} is published to {node:?}, and the driver lacks the feature \
                 `online-expansion`",
                request.handle
            )));
        }
        let mut usage = VersionedStorageUsage::read(call.store)?;
        volumes::check_capacity(call.settings, &usage.usage, volume.segment.as_ref(), additional).map_err(
            |reason| {
                StorageError::resource_exhausted(format!("{additional} more bytes do not fit: {reason}"))
            },
        )?;
        usage.usage.add_bytes(volume.segment.as_ref(), additional);
        volume.size = size;
        volume.changed_ms = call.now_ms;
        let changes =
            vec![state::put(&volume_key(&request.handle), &volume, Some(version))?, usage.to_change()?];
        Ok(Decision::Commit(changes, expanded))
    })
}
