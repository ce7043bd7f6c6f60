//! A template for a storage driver. It stores only the records of its volumes, in the `state` import. The
//! volumes have no content: on a node, each is an empty read-only directory.
//!
//! Replace it function by function, and run `cofferdam backend test` to find violations of the contract.
#![forbid(unsafe_code)]

use cofferdam_guest::{
    Backend, ConnectionInfo, CreateRequest, Description, KeyValues, Owner, Readiness, ReclaimPolicy, Result,
    StorageError, ValidateRequest, Validation, Volume, VolumeCapability, VolumeStatus,
    abilities::{Listing, VolumePage},
    ambient, handle,
    idempotent::ExistingComparison,
    paging,
    parameters::ParameterReader,
    sizes::Sizes,
    state::{self, Decision, Store as _},
};
use serde::{Deserialize, Serialize};

/// The driver's name, which a StorageClass names as its `provisioner`.
const NAME: &str = "starter.example.com";
/// Supported sizes: 1 MiB to 16 TiB. The default is 1 GiB.
const SIZES: Sizes = Sizes::between(1 << 20, 1 << 44).by_default(1 << 30);
/// Key prefix of volumes in the state.
const VOLUME_PREFIX: &str = "volume/";
/// Maximum length of the name in a create request, in bytes.
const MAX_NAME: usize = 128;
/// Maximum number of volumes on a page.
const PAGE: u32 = 100;

struct StarterDriver;

cofferdam_guest::export!(StarterDriver: listing);

/// The stored record of a volume.
#[derive(Serialize, Deserialize)]
struct StarterVolume {
    name: String,
    bytes: u64,
    /// The canonical strings of the capabilities that the volume was created for.
    capabilities: Vec<String>,
    changed_at_ms: u64,
    owner: Option<StarterOwner>,
}

/// The owner of a volume. It allows an orphaned volume to be distinguished from a volume of another cluster.
#[derive(Serialize, Deserialize)]
struct StarterOwner {
    cluster: String,
    claim: String,
    volume: String,
    retain: bool,
}

impl Backend for StarterDriver {
    fn describe() -> Result<Description> {
        Ok(Description::new(NAME, env!("CARGO_PKG_VERSION")))
    }

    fn probe() -> Result<Readiness> {
        // Check here that the storage is available.
        Ok(Readiness::Ready)
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        check_name(&request.name)?;
        check_parameters(&request.parameters, &request.mutable_parameters)?;
        let capabilities = canonical_capabilities(&request.capabilities)?;
        let handle = handle::from_name("vol", &request.name);
        let key = format!("{VOLUME_PREFIX}{handle}");
        let size = SIZES.choose(&request.capacity);
        state::decide(&state::HostStore, |store| {
            if let Some(found) = state::read::<StarterVolume>(store, &key)? {
                let found = found.value;
                return ExistingComparison::new("volume", &request.name)
                    .size_within(found.bytes, &request.capacity)
                    .equal("use", &found.capabilities, &capabilities)
                    .same_cluster(found.owner.as_ref().map(|owner| &*owner.cluster), request.owner.as_ref())
                    .check()
                    .map(|()| Decision::Done(volume(&handle, &found)));
            }
            let record = StarterVolume {
                name: request.name.clone(),
                bytes: size.clone()?,
                capabilities: capabilities.clone(),
                changed_at_ms: u64::try_from(ambient::now().as_millis()).unwrap_or_default(),
                owner: request.owner.as_ref().map(starter_owner),
            };
            let answer = volume(&handle, &record);
            Ok(Decision::Commit(vec![state::put(&key, &record, None)?], answer))
        })
    }

    fn delete_volume(handle: String) -> Result<()> {
        if handle.len() > handle::MAX_LENGTH {
            return Ok(());
        }
        let key = format!("{VOLUME_PREFIX}{handle}");
        state::decide(&state::HostStore, |store| {
            Ok(match store.get(&key)? {
                Some(found) => Decision::Commit(vec![state::remove(&key, found.version)], ()),
                None => Decision::Done(()),
            })
        })
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        let absent = || StorageError::not_found(format!("there is no volume {:?}", request.handle));
        if request.handle.len() > handle::MAX_LENGTH {
            return Err(absent());
        }
        let requested = canonical_capabilities(&request.capabilities)?;
        let key = format!("{VOLUME_PREFIX}{}", request.handle);
        let record = state::read::<StarterVolume>(&state::HostStore, &key)?.ok_or_else(absent)?.value;
        // No volume can be created with invalid parameters, so this volume was not.
        if let Err(error) = check_parameters(&request.parameters, &request.mutable_parameters) {
            return Ok(Validation::Refused(error.message));
        }
        Ok(match requested.iter().find(|requested| !record.capabilities.contains(requested)) {
            Some(missing) => Validation::Refused(format!("the volume was not created for {missing}")),
            None => Validation::Confirmed,
        })
    }
}

impl Listing for StarterDriver {
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        let begin = paging::key_of_token(after.as_deref())?.map(|handle| format!("{VOLUME_PREFIX}{handle}"));
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(PAGE).min(PAGE);
        let page = state::HostStore.scan(VOLUME_PREFIX, begin.as_deref(), limit)?;
        let mut volumes = Vec::with_capacity(page.entries.len());
        for found in &page.entries {
            let handle = found.key.strip_prefix(VOLUME_PREFIX).unwrap_or(&found.key);
            if let Some(record) = state::read::<StarterVolume>(&state::HostStore, &found.key)? {
                volumes.push(status(handle, &record.value));
            }
        }
        let last = page.entries.last().and_then(|found| found.key.strip_prefix(VOLUME_PREFIX));
        let next = if page.more { last.map(paging::token) } else { None };
        Ok(VolumePage { volumes, next })
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(StorageError::invalid_argument(format!(
            "the name has {} bytes; expected 1 to {MAX_NAME} without control characters",
            name.len()
        )));
    }
    Ok(())
}

/// Parse the class parameters of your driver here. Unknown parameters are rejected by name.
fn check_parameters(parameters: &KeyValues, mutable: &KeyValues) -> Result<()> {
    ParameterReader::parameters(parameters.clone()).finish()?;
    ParameterReader::mutable_parameters(mutable.clone()).finish()
}

/// The capability strings, sorted, so that requests can be compared. Fails with `invalid_argument` if there
/// is no capability.
fn canonical_capabilities(capabilities: &[VolumeCapability]) -> Result<Vec<String>> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no way of use was given; expected at least one"));
    }
    let mut lines: Vec<_> = capabilities.iter().map(VolumeCapability::canonical_string).collect();
    lines.sort();
    lines.dedup();
    Ok(lines)
}

fn starter_owner(owner: &Owner) -> StarterOwner {
    StarterOwner {
        cluster: owner.cluster_id.clone(),
        claim: owner.claim_uid.clone(),
        volume: owner.pv_name.clone(),
        retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
    }
}

fn volume(handle: &str, record: &StarterVolume) -> Volume {
    Volume { connection_info: Some(ConnectionInfo::none()), ..Volume::new(handle, record.bytes) }
}

fn status(handle: &str, record: &StarterVolume) -> VolumeStatus {
    let owner = |stored: &StarterOwner| Owner {
        cluster_id: stored.cluster.clone(),
        claim_uid: stored.claim.clone(),
        pv_name: stored.volume.clone(),
        reclaim_policy: if stored.retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
    };
    VolumeStatus {
        volume: volume(handle, record),
        owner: record.owner.as_ref().map(owner),
        published_nodes: Vec::new(),
        condition: None,
        changed_at_ms: Some(record.changed_at_ms),
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_guest::{AccessMode, AccessType, CapacityRange, ErrorKind, mock};

    use super::*;

    fn request(name: &str, bytes: u64) -> CreateRequest {
        CreateRequest {
            name: name.to_owned(),
            capacity: CapacityRange { required_bytes: Some(bytes), limit_bytes: None },
            capabilities: vec![VolumeCapability {
                mode: AccessMode::SingleNodeWriter,
                access: AccessType::Block,
            }],
            parameters: Vec::new(),
            mutable_parameters: Vec::new(),
            topology: None,
            owner: None,
        }
    }

    #[test]
    fn a_volume_is_created_once_and_deleted() {
        let _host = mock::MockHost::new().install();
        let volume = StarterDriver::create_volume(request("pvc-1", 2 << 20)).unwrap();
        assert_eq!((volume.handle.as_str(), volume.capacity_bytes), ("vol-pvc-1", Some(2 << 20)));
        assert_eq!(
            StarterDriver::create_volume(request("pvc-1", 2 << 20)).unwrap(),
            volume,
            "the same call finds it"
        );
        let other = StarterDriver::create_volume(request("pvc-1", 3 << 20)).unwrap_err();
        assert_eq!(other.kind, ErrorKind::AlreadyExists);
        assert_eq!(StarterDriver::list_volumes(None, None).unwrap().volumes.len(), 1);
        StarterDriver::delete_volume(volume.handle.clone()).unwrap();
        StarterDriver::delete_volume(volume.handle).unwrap();
        assert!(StarterDriver::list_volumes(None, None).unwrap().volumes.is_empty());
    }

    #[test]
    fn validate_rejects_other_capabilities_and_parameters() {
        let host = mock::MockHost::new().install();
        let volume = StarterDriver::create_volume(request("pvc-1", 2 << 20)).unwrap();
        let stored = host.get("volume/vol-pvc-1").unwrap().unwrap().value;
        assert!(
            String::from_utf8(stored).unwrap().contains(r#""capabilities":["single-node-writer block"]"#)
        );
        let tier = || vec![("tier".to_owned(), "gold".to_owned())];
        let validate_request = |mode, parameters, mutable_parameters| ValidateRequest {
            handle: volume.handle.clone(),
            context: Vec::new(),
            capabilities: vec![VolumeCapability { mode, access: AccessType::Block }],
            parameters,
            mutable_parameters,
        };
        let writer = AccessMode::SingleNodeWriter;
        assert_eq!(
            StarterDriver::validate(validate_request(writer, Vec::new(), Vec::new())),
            Ok(Validation::Confirmed)
        );
        for refused in [
            validate_request(AccessMode::MultiNodeMultiWriter, Vec::new(), Vec::new()),
            validate_request(writer, tier(), Vec::new()),
            validate_request(writer, Vec::new(), tier()),
        ] {
            let answer = StarterDriver::validate(refused).unwrap();
            assert!(matches!(answer, Validation::Refused(_)), "{answer:?}");
        }
        let absent =
            ValidateRequest { handle: "vol-x".to_owned(), ..validate_request(writer, tier(), Vec::new()) };
        assert_eq!(StarterDriver::validate(absent).unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn a_volume_is_created_despite_concurrent_writes() {
        let host = mock::MockHost::new().install();
        let mut conflicts = 3;
        host.before_each_commit(move |host| {
            if conflicts > 0 {
                conflicts -= 1;
                host.write_state("somebody-else", b"x");
            }
        });
        StarterDriver::create_volume(request("pvc-2", 1 << 20)).unwrap();
        assert_eq!(StarterDriver::list_volumes(None, Some(1)).unwrap().volumes.len(), 1);
    }
}
