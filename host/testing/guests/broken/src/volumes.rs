//! The calls that create, delete and validate volumes, also from another volume or a snapshot.

use std::collections::BTreeMap;

use cofferdam_guest::{
    CreateRequest, ErrorKind, Finality, ReclaimPolicy, Result, SnapshotHandle, StorageError, ValidateRequest,
    Validation, Volume, VolumeHandle,
    abilities::{Cloning, Restoring},
    http::Request,
    secrets, settings,
};

use crate::{
    BrokenDriver, busy_wait, check_deletable, compute_until_stopped,
    db::{self, BrokenDriverState, OwnerEntry, VolumeEntry},
    is_broken, is_broken_for, nonce, request, topology_segment,
};

const KNOWN_FILESYSTEMS: [&str; 2] = ["ext4", "xfs"];

impl Cloning for BrokenDriver {
    fn create_from_volume(request: CreateRequest, source: VolumeHandle) -> Result<Volume> {
        create(request, Some(source))
    }
}

impl Restoring for BrokenDriver {
    fn create_from_snapshot(request: CreateRequest, source: SnapshotHandle) -> Result<Volume> {
        create(request, Some(source))
    }
}

/// The interface whose rules a create follows or breaks.
fn interface(origin: Option<&str>) -> &'static str {
    match origin {
        None => "volumes",
        Some(origin) if origin.starts_with("s-") => "restoring",
        Some(_) => "cloning",
    }
}

/// Creates or finds a volume.
pub(crate) fn create(request: CreateRequest, origin: Option<String>) -> Result<Volume> {
    let name = request.name.clone();
    assert!(!is_broken_for("errors/no-defects", &name, "provoked"), "a defect");
    if is_broken_for("errors/no-secrets", &name, "provoked") {
        return Err(StorageError::invalid_argument("the array rejects the token token-of-broken"));
    }
    request::check_name(&name)?;
    if let Some(secret) = settings::get("secret") {
        let missing = secrets::require(&secret).is_err() && is_broken("errors/without-secrets");
        assert!(!missing, "nobody thought of that");
        secrets::require(&secret)?;
    }
    if is_broken_for("volumes/one-byte", &name, "tiny") {
        return Err(StorageError::unavailable("no volumes today").without_effect());
    }
    let wanted = stored_volume(&request, origin)?;
    check_topology(&request)?;
    let handle = request::volume_handle(&name);
    if is_race_case(&name) {
        return create_without_lock(&name, &handle, &wanted);
    }
    let marker = write_crash_marker(&name, &handle)?;
    let retries = !is_broken_for("concurrency/different-names", &name, "parallel");
    let volume = db::update_with_retry(retries, |db| match db.volumes.get(&handle) {
        Some(found) => check_same_request(found, &wanted, &request).map(|()| volume_of(&handle, found)),
        None => insert_volume(db, &handle, &wanted, &request),
    })?;
    if let Some(marker) = marker {
        db::remove_marker(&marker)?;
    }
    notify_server(&name)?;
    Ok(volume)
}

/// Reports a volume to the server of the setting `url`, if it is set. If the response is lost, the error's
/// outcome is unknown, or final if the rule `crashes/lost-answers` is broken.
fn notify_server(name: &str) -> Result<()> {
    let Some(url) = settings::get("url") else { return Ok(()) };
    match Request::put(url).send() {
        Err(_) if is_broken_for("crashes/lost-answers", name, "deaf") => {
            Err(StorageError::failed_precondition("nobody answers"))
        }
        answer => Ok(answer.map(drop)?),
    }
}

/// Rejects a request whose requisite topologies do not contain the driver's segment.
fn check_topology(request: &CreateRequest) -> Result<()> {
    let (Some(place), Some(topology)) = (topology_segment(), &request.topology) else { return Ok(()) };
    let is_reachable =
        topology.requisite.is_empty() || topology.requisite.iter().any(|wanted| wanted.contains(&place));
    if is_reachable || is_broken("topology/unknown-segment") {
        return Ok(());
    }
    Err(StorageError::resource_exhausted("there is nothing in that place"))
}

/// Topology of a volume.
fn volume_topology() -> Vec<Vec<(String, String)>> {
    let Some((key, value)) = topology_segment() else {
        let foreign_segment = vec![("zone".to_owned(), "a".to_owned())];
        return if is_broken("topology/none") { vec![foreign_segment] } else { Vec::new() };
    };
    let value = if is_broken("topology/is-met") { "elsewhere".to_owned() } else { value };
    let mut segment = vec![(key, value)];
    if is_broken("topology/known-keys") {
        segment.push(("another".to_owned(), "a".to_owned()));
    }
    vec![segment]
}

fn is_race_case(name: &str) -> bool {
    is_broken_for("concurrency/same-name", name, "race")
        || is_broken_for("deadlines/abandoned-create", name, "abandoned")
}

/// Creates a volume unless it exists. The check and the change are separate transactions: concurrent calls
/// create two.
fn create_without_lock(name: &str, handle: &str, wanted: &VolumeEntry) -> Result<Volume> {
    if let Some((handle, found)) = db::load()?.volumes.iter().find(|(_, found)| found.name == name) {
        return Ok(volume_of(handle, found));
    }
    busy_wait();
    let handle = format!("{handle}-{}", nonce().get(..8).unwrap_or_default());
    db::update(|db| {
        db.volumes.insert(handle.clone(), wanted.clone());
        Ok(volume_of(&handle, wanted))
    })
}

/// If a rule about crashes or deadlines is broken, writes a key that makes a repetition of the call fail.
/// Returns the key, which the caller removes after the volume is created; otherwise `None`.
fn write_crash_marker(name: &str, handle: &str) -> Result<Option<String>> {
    let is_crash_case = is_broken_for("crashes/create", name, "dying-create")
        || is_broken_for("crashes/clone", name, "dying-clone")
        || is_broken_for("crashes/restore", name, "dying-restore");
    let is_deadline_case = is_broken_for("deadlines/create", name, "hurried");
    if !is_crash_case && !is_deadline_case {
        return Ok(None);
    }
    let marker = format!("begun/{handle}");
    if db::has_marker(&marker)? {
        return Err(StorageError::already_exists(format!("{name:?} was begun before")));
    }
    db::write_marker(&marker)?;
    if is_deadline_case {
        compute_until_stopped();
    }
    Ok(Some(marker))
}

fn stored_volume(request: &CreateRequest, origin: Option<String>) -> Result<VolumeEntry> {
    let exists =
        || db::load().is_ok_and(|db| db.volumes.contains_key(&request::volume_handle(&request.name)));
    let parameters = if is_broken("volumes/create-other-parameters") && exists() {
        BTreeMap::new()
    } else {
        request::parse_parameters(request.parameters.clone())?
    };
    if !request.mutable_parameters.is_empty() && is_broken("modification/create-with") {
        return Err(StorageError::invalid_argument("there are no mutable parameters"));
    }
    let mutable =
        request::parse_mutable_parameters(request.mutable_parameters.clone(), "modification/create-unknown")?;
    for capability in &request.capabilities {
        check_filesystem(capability)?;
    }
    let size = request::choose_size(&request.name, request.capacity)?;
    Ok(VolumeEntry {
        name: request.name.clone(),
        size,
        first_size: size,
        parameters,
        first_mutable_parameters: mutable.clone(),
        mutable_parameters: mutable,
        capabilities: request::format_capabilities(&request.capabilities, "volumes/no-capability")?,
        is_multi_node: request.capabilities.iter().any(request::is_multi_node),
        origin,
        owner: request.owner.as_ref().map(|owner| OwnerEntry {
            cluster: owner.cluster_id.clone(),
            claim: owner.claim_uid.clone(),
            volume: owner.pv_name.clone(),
            is_retained: matches!(owner.reclaim_policy, ReclaimPolicy::Retain),
        }),
        published: BTreeMap::new(),
        changed_at_ms: db::now(),
    })
}

fn check_filesystem(capability: &cofferdam_guest::VolumeCapability) -> Result<()> {
    match &capability.access {
        cofferdam_guest::AccessType::Filesystem(access) => match access.fs_type.as_deref() {
            Some(unknown) if !KNOWN_FILESYSTEMS.contains(&unknown) => {
                Err(StorageError::invalid_argument(format!("the filesystem {unknown:?} is not known")))
            }
            _ => Ok(()),
        },
        cofferdam_guest::AccessType::Block => Ok(()),
    }
}

/// Rejects a request that an existing volume with the same name does not match.
fn check_same_request(found: &VolumeEntry, wanted: &VolumeEntry, request: &CreateRequest) -> Result<()> {
    let range = request.capacity;
    let fits = range.required_bytes.is_none_or(|required| found.size >= required)
        && range.limit_bytes.is_none_or(|limit| found.size <= limit);
    let grown = found.size > found.first_size && is_broken("expansion/create-finds-expanded");
    let other_source = format!("{}/other-source", interface(found.origin.as_deref()));
    let ignores_values = is_broken("volumes/create-other-value");
    let differences = [
        (!fits, "volumes/create-other-size", "size"),
        (
            found.parameters != wanted.parameters && !ignores_values,
            "volumes/create-other-parameters",
            "parameters",
        ),
        (found.first_mutable_parameters != wanted.first_mutable_parameters, "-", "mutable parameters"),
        (found.capabilities != wanted.capabilities, "volumes/create-other-capability", "uses"),
        (found.origin != wanted.origin, other_source.as_str(), "source"),
        (grown, "-", "first size"),
    ];
    match differences.into_iter().find(|(differences, rule, _)| *differences && !is_broken(rule)) {
        Some((_, _, what)) => {
            Err(StorageError::already_exists(format!("{:?} exists with another {what}", found.name)))
        }
        None => Ok(()),
    }
}

fn insert_volume(
    db: &mut BrokenDriverState,
    handle: &str,
    wanted: &VolumeEntry,
    request: &CreateRequest,
) -> Result<Volume> {
    let origin = wanted.origin.as_deref();
    if is_broken_for("volumes/create-after-delete", &wanted.name, "reborn") && wanted.size > 1 << 20 {
        return Err(StorageError::already_exists("the name was in use once"));
    }
    let min_size = request::source_size(db, origin)?;
    let mut wanted = wanted.clone();
    if request.capacity.required_bytes.is_none() || wanted.size < min_size {
        let within = request.capacity.limit_bytes.is_none_or(|limit| limit >= min_size);
        if !within && !is_broken(&format!("{}/too-small", interface(origin))) {
            return Err(StorageError::out_of_range(format!("the source has {min_size} bytes")));
        }
        wanted.size = wanted.size.max(if within { min_size } else { 0 });
        wanted.first_size = wanted.size;
    }
    let created = volume_of(handle, &wanted);
    db.volumes.insert(handle.to_owned(), wanted);
    Ok(created)
}

/// The volume as returned to the caller.
pub(crate) fn volume_of(handle: &str, stored: &VolumeEntry) -> Volume {
    let mut volume = Volume::new(handle, stored.size);
    let is_random = is_broken_for("volumes/create-is-idempotent", &stored.name, "twice")
        || is_broken_for("cloning/is-idempotent", &stored.name, "cloned")
        || is_broken_for("restoring/is-idempotent", &stored.name, "restored");
    volume.topology = volume_topology();
    if is_broken("publishing/connection-info") {
        volume.connection_info = Some(cofferdam_guest::ConnectionInfo::none());
    }
    volume.context = stored.parameters.clone().into_iter().collect();
    if is_random {
        volume.context.push(("nonce".to_owned(), nonce()));
    }
    volume
}

fn is_own_handle(handle: &str) -> bool {
    handle.starts_with("v-")
}

/// Deletes a volume.
pub(crate) fn delete(handle: &str) -> Result<()> {
    if !is_own_handle(handle) && is_broken("volumes/delete-unknown") {
        return Err(StorageError::invalid_argument("this is no handle"));
    }
    let is_crash_case = db::load()?
        .volumes
        .get(handle)
        .is_some_and(|found| is_broken_for("crashes/delete", &found.name, "dying-delete"));
    if is_crash_case {
        db::write_marker(&format!("trash/{}", nonce()))?;
    }
    let is_deadline_case = |name: &str| is_broken_for("deadlines/delete", name, "hurried-delete");
    if is_deadline_case(&db::name_of(handle)?) {
        return db::with_marker(&format!("deleting/{handle}"), || compute_until_stopped());
    }
    let is_race_case = db::load()?
        .volumes
        .get(handle)
        .is_some_and(|found| is_broken_for("concurrency/create-and-delete", &found.name, "churned"));
    remove(handle, !is_race_case)
}

fn remove(handle: &str, retries: bool) -> Result<()> {
    db::update_with_retry(retries, |db| {
        let Some(found) = db.volumes.get(handle) else {
            if is_own_handle(handle) && is_broken("volumes/delete-is-idempotent") {
                return Err(StorageError::not_found("it is deleted already"));
            }
            return Ok(());
        };
        if is_broken_for("volumes/delete-deletes", &found.name, "gone")
            || is_broken_for("cleanup/nothing-is-left", &found.name, "last")
            || is_broken_for("listing/omits-deleted", &found.name, "forgotten")
        {
            return Ok(());
        }
        if !found.published.is_empty() {
            if is_broken("publishing/delete-while-published") {
                return Err(StorageError::permission_denied("somebody is in there"));
            }
            return Err(StorageError::failed_precondition("the volume is published"));
        }
        check_deletable(handle, &found.name)?;
        db.volumes.remove(handle);
        if is_broken("cloning/outlives-its-source") {
            db.volumes.retain(|_, volume| volume.origin.as_deref() != Some(handle));
        }
        if is_broken("snapshots/outlive-their-volume") {
            db.snapshots.retain(|_, snapshot| snapshot.source != handle);
        }
        Ok(())
    })
}

/// Validates capabilities.
pub(crate) fn validate(request: ValidateRequest) -> Result<Validation> {
    let uses = request::format_capabilities(&request.capabilities, "volumes/validate-no-capability")?;
    let db = db::load()?;
    let Some(found) = db.volumes.get(&request.handle) else {
        if !is_own_handle(&request.handle) {
            if is_broken("volumes/validate-missing") {
                return Ok(Validation::Confirmed);
            }
            if is_broken("errors/have-a-message") {
                return Err(StorageError::not_found(" "));
            }
            if is_broken("errors/final-kinds-are-final") {
                return Err(StorageError::new(ErrorKind::NotFound, Finality::Unknown, "not there"));
            }
        }
        return Err(StorageError::not_found(format!("there is no volume {:?}", request.handle)));
    };
    if is_broken("volumes/validate-confirms") {
        return Ok(Validation::Refused("not today".to_owned()));
    }
    let unsupported = uses.iter().find(|wanted| !found.capabilities.contains(*wanted));
    match unsupported {
        Some(wanted) if !is_broken("volumes/validate-refuses") => {
            Ok(Validation::Refused(format!("the volume was not created for {wanted}")))
        }
        _ => Ok(Validation::Confirmed),
    }
}
