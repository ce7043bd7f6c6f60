//! A storage driver to begin with. It keeps its volumes in the `state` import, where your storage would keep them: replace that
//! function by function. `cofferdam backend test` tells what no longer holds.
#![forbid(unsafe_code)]

use cofferdam_guest::{
    Attachment, Backend, CreateRequest, Description, KeyValues, Owner, Readiness, ReclaimPolicy, Result,
    StorageError, ValidateRequest, Validation, Volume, VolumeCapability, VolumeStatus,
    abilities::{Listing, VolumePage},
    ambient, handle,
    idempotent::Existing,
    paging,
    parameters::Reader,
    sizes::Sizes,
    state::{self, Decision, Store as _},
};
use serde::{Deserialize, Serialize};

/// The driver's name, which a StorageClass gives as its `provisioner`.
const NAME: &str = "starter.example.com";
/// The sizes that a volume can have: 1 MiB to 16 TiB, 1 GiB when the claim leaves it open.
const SIZES: Sizes = Sizes::between(1 << 20, 1 << 44).by_default(1 << 30);
/// Keys of volumes in the state.
const VOLUMES: &str = "volume/";
/// Longest name of a volume, in bytes.
const MAX_NAME: usize = 128;
/// How many volumes are read at once.
const PAGE: u32 = 100;

struct Driver;

cofferdam_guest::export!(Driver: listing);

/// A volume as it is kept.
#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    bytes: u64,
    /// The ways in which it can be used.
    uses: Vec<String>,
    changed_at_ms: u64,
    owner: Option<Asker>,
}

/// Who asked for a volume: with it, a forgotten volume can be told from a stranger's.
#[derive(Serialize, Deserialize)]
struct Asker {
    cluster: String,
    claim: String,
    volume: String,
    retain: bool,
}

impl Backend for Driver {
    fn describe() -> Result<Description> {
        Ok(Description::new(NAME, env!("CARGO_PKG_VERSION")))
    }

    fn probe() -> Result<Readiness> {
        // Ask the storage here whether it can be used.
        Ok(Readiness::Ready)
    }

    fn create(request: CreateRequest) -> Result<Volume> {
        check_name(&request.name)?;
        check_parameters(&request.parameters, &request.mutable_parameters)?;
        let uses = uses(&request.capabilities)?;
        let handle = handle::of("vol", &request.name);
        let key = format!("{VOLUMES}{handle}");
        let size = SIZES.choose(&request.capacity);
        state::decide(&state::Host, |store| {
            if let Some(found) = state::read::<Record>(store, &key)? {
                let found = found.value;
                return Existing::new("volume", &request.name)
                    .fits(found.bytes, &request.capacity)
                    .same("use", &found.uses, &uses)
                    .same_cluster(found.owner.as_ref().map(|owner| &*owner.cluster), request.owner.as_ref())
                    .check()
                    .map(|()| Decision::Done(volume(&handle, &found)));
            }
            let record = Record {
                name: request.name.clone(),
                bytes: size.clone()?,
                uses: uses.clone(),
                changed_at_ms: u64::try_from(ambient::now().as_millis()).unwrap_or_default(),
                owner: request.owner.as_ref().map(asker),
            };
            let answer = volume(&handle, &record);
            Ok(Decision::Commit(vec![state::put(&key, &record, None)?], answer))
        })
    }

    fn delete(handle: String) -> Result<()> {
        if handle.len() > handle::MAX {
            return Ok(());
        }
        let key = format!("{VOLUMES}{handle}");
        state::decide(&state::Host, |store| {
            Ok(match store.get(&key)? {
                Some(found) => Decision::Commit(vec![state::remove(&key, found.version)], ()),
                None => Decision::Done(()),
            })
        })
    }

    fn validate(request: ValidateRequest) -> Result<Validation> {
        let absent = || StorageError::not_found(format!("there is no volume {:?}", request.handle));
        if request.handle.len() > handle::MAX {
            return Err(absent());
        }
        let wanted = uses(&request.capabilities)?;
        let key = format!("{VOLUMES}{}", request.handle);
        let record = state::read::<Record>(&state::Host, &key)?.ok_or_else(absent)?.value;
        // What no volume is created with, this one was not either.
        if let Err(error) = check_parameters(&request.parameters, &request.mutable_parameters) {
            return Ok(Validation::Refused(error.message));
        }
        Ok(match wanted.iter().find(|wanted| !record.uses.contains(wanted)) {
            Some(missing) => Validation::Refused(format!("the volume was not created for {missing}")),
            None => Validation::Confirmed,
        })
    }
}

impl Listing for Driver {
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        let begin = paging::key(after.as_deref())?.map(|handle| format!("{VOLUMES}{handle}"));
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(PAGE).min(PAGE);
        let page = state::Host.scan(VOLUMES, begin.as_deref(), limit)?;
        let mut volumes = Vec::with_capacity(page.entries.len());
        for found in &page.entries {
            let handle = found.key.strip_prefix(VOLUMES).unwrap_or(&found.key);
            if let Some(record) = state::read::<Record>(&state::Host, &found.key)? {
                volumes.push(status(handle, &record.value));
            }
        }
        let last = page.entries.last().and_then(|found| found.key.strip_prefix(VOLUMES));
        let next = if page.more { last.map(paging::place) } else { None };
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

/// Parameters of a class that you know are read here; the others are refused by their names.
fn check_parameters(parameters: &KeyValues, mutable: &KeyValues) -> Result<()> {
    Reader::parameters(parameters.clone()).finish()?;
    Reader::mutable_parameters(mutable.clone()).finish()
}

/// The ways of use, written out and sorted, so that two requests can be compared.
fn uses(capabilities: &[VolumeCapability]) -> Result<Vec<String>> {
    if capabilities.is_empty() {
        return Err(StorageError::invalid_argument("no way of use was given; expected at least one"));
    }
    let mut uses: Vec<_> = capabilities.iter().map(VolumeCapability::words).collect();
    uses.sort();
    uses.dedup();
    Ok(uses)
}

fn asker(owner: &Owner) -> Asker {
    Asker {
        cluster: owner.cluster_id.clone(),
        claim: owner.claim_uid.clone(),
        volume: owner.pv_name.clone(),
        retain: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
    }
}

fn volume(handle: &str, record: &Record) -> Volume {
    Volume { attachment: Some(Attachment::none()), ..Volume::new(handle, record.bytes) }
}

fn status(handle: &str, record: &Record) -> VolumeStatus {
    let owner = |asker: &Asker| Owner {
        cluster_id: asker.cluster.clone(),
        claim_uid: asker.claim.clone(),
        pv_name: asker.volume.clone(),
        reclaim_policy: if asker.retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
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
    fn a_volume_comes_and_goes() {
        let _host = mock::Host::new().install();
        let made = Driver::create(request("pvc-1", 2 << 20)).unwrap();
        assert_eq!((made.handle.as_str(), made.capacity_bytes), ("vol-pvc-1", Some(2 << 20)));
        assert_eq!(Driver::create(request("pvc-1", 2 << 20)).unwrap(), made, "the same call finds it");
        let other = Driver::create(request("pvc-1", 3 << 20)).unwrap_err();
        assert_eq!(other.kind, ErrorKind::AlreadyExists);
        assert_eq!(Driver::list(None, None).unwrap().volumes.len(), 1);
        Driver::delete(made.handle.clone()).unwrap();
        Driver::delete(made.handle).unwrap();
        assert!(Driver::list(None, None).unwrap().volumes.is_empty());
    }

    #[test]
    fn what_a_volume_is_not_created_for_is_refused() {
        let host = mock::Host::new().install();
        let made = Driver::create(request("pvc-1", 2 << 20)).unwrap();
        let kept = host.get("volume/vol-pvc-1").unwrap().unwrap().value;
        assert!(String::from_utf8(kept).unwrap().contains(r#""uses":["single-node-writer block"]"#));
        let tier = || vec![("tier".to_owned(), "gold".to_owned())];
        let asked = |mode, parameters, mutable_parameters| ValidateRequest {
            handle: made.handle.clone(),
            context: Vec::new(),
            capabilities: vec![VolumeCapability { mode, access: AccessType::Block }],
            parameters,
            mutable_parameters,
        };
        let writer = AccessMode::SingleNodeWriter;
        assert_eq!(Driver::validate(asked(writer, Vec::new(), Vec::new())), Ok(Validation::Confirmed));
        for refused in [
            asked(AccessMode::MultiNodeMultiWriter, Vec::new(), Vec::new()),
            asked(writer, tier(), Vec::new()),
            asked(writer, Vec::new(), tier()),
        ] {
            let answer = Driver::validate(refused).unwrap();
            assert!(matches!(answer, Validation::Refused(_)), "{answer:?}");
        }
        let absent = ValidateRequest { handle: "vol-x".to_owned(), ..asked(writer, tier(), Vec::new()) };
        assert_eq!(Driver::validate(absent).unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn a_volume_survives_a_lost_answer() {
        let host = mock::Host::new().install();
        let mut strangers = 3;
        host.before_commits(move |host| {
            if strangers > 0 {
                strangers -= 1;
                host.write("somebody-else", b"x");
            }
        });
        Driver::create(request("pvc-2", 1 << 20)).unwrap();
        assert_eq!(Driver::list(None, Some(1)).unwrap().volumes.len(), 1);
    }
}
