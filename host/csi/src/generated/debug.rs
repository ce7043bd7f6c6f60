impl ::core::fmt::Debug for CreateVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("CreateVolumeRequest")
            .field("name", &self.name)
            .field("capacity_range", &self.capacity_range)
            .field("volume_capabilities", &self.volume_capabilities)
            .field("parameters", &self.parameters)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("volume_content_source", &self.volume_content_source)
            .field("accessibility_requirements", &self.accessibility_requirements)
            .field("mutable_parameters", &self.mutable_parameters)
            .finish()
    }
}
impl ::core::fmt::Debug for DeleteVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("DeleteVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
impl ::core::fmt::Debug for ControllerPublishVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("ControllerPublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("node_id", &self.node_id)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("volume_context", &self.volume_context)
            .finish()
    }
}
impl ::core::fmt::Debug for ControllerUnpublishVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("ControllerUnpublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("node_id", &self.node_id)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
impl ::core::fmt::Debug for ValidateVolumeCapabilitiesRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("ValidateVolumeCapabilitiesRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_context", &self.volume_context)
            .field("volume_capabilities", &self.volume_capabilities)
            .field("parameters", &self.parameters)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("mutable_parameters", &self.mutable_parameters)
            .finish()
    }
}
impl ::core::fmt::Debug for ControllerModifyVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("ControllerModifyVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("mutable_parameters", &self.mutable_parameters)
            .finish()
    }
}
impl ::core::fmt::Debug for CreateSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("CreateSnapshotRequest")
            .field("source_volume_id", &self.source_volume_id)
            .field("name", &self.name)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("parameters", &self.parameters)
            .finish()
    }
}
impl ::core::fmt::Debug for DeleteSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("DeleteSnapshotRequest")
            .field("snapshot_id", &self.snapshot_id)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
impl ::core::fmt::Debug for ListSnapshotsRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("ListSnapshotsRequest")
            .field("max_entries", &self.max_entries)
            .field("starting_token", &self.starting_token)
            .field("source_volume_id", &self.source_volume_id)
            .field("snapshot_id", &self.snapshot_id)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
impl ::core::fmt::Debug for GetSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("GetSnapshotRequest")
            .field("snapshot_id", &self.snapshot_id)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
impl ::core::fmt::Debug for ControllerExpandVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("ControllerExpandVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("capacity_range", &self.capacity_range)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("volume_capability", &self.volume_capability)
            .finish()
    }
}
impl ::core::fmt::Debug for NodeStageVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("NodeStageVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &self.publish_context)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("volume_context", &self.volume_context)
            .finish()
    }
}
impl ::core::fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("publish_context", &self.publish_context)
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("volume_context", &self.volume_context)
            .finish()
    }
}
impl ::core::fmt::Debug for NodeExpandVolumeRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("NodeExpandVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_path", &self.volume_path)
            .field("capacity_range", &self.capacity_range)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
impl ::core::fmt::Debug for CreateVolumeGroupSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("CreateVolumeGroupSnapshotRequest")
            .field("name", &self.name)
            .field("source_volume_ids", &self.source_volume_ids)
            .field("secrets", &::core::format_args!("***stripped***"))
            .field("parameters", &self.parameters)
            .finish()
    }
}
impl ::core::fmt::Debug for DeleteVolumeGroupSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("DeleteVolumeGroupSnapshotRequest")
            .field("group_snapshot_id", &self.group_snapshot_id)
            .field("snapshot_ids", &self.snapshot_ids)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
impl ::core::fmt::Debug for GetVolumeGroupSnapshotRequest {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("GetVolumeGroupSnapshotRequest")
            .field("group_snapshot_id", &self.group_snapshot_id)
            .field("snapshot_ids", &self.snapshot_ids)
            .field("secrets", &::core::format_args!("***stripped***"))
            .finish()
    }
}
