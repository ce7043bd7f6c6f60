//! Expansion and modification.

use cofferdam_guest::{
    KeyValues, Result, StorageError, VolumeHandle,
    abilities::{ExpandRequest, ExpandResponse, Expansion, Modification},
};

use crate::{BrokenDriver, busy_wait, db, has_feature, is_broken, is_broken_for, request};

impl Expansion for BrokenDriver {
    fn expand(wanted: ExpandRequest) -> Result<ExpandResponse> {
        if is_broken_for("concurrency/expand", &db::name_of(&wanted.handle)?, "stretched") {
            return expand_without_lock(&wanted);
        }
        let mut required = wanted.capacity.required_bytes.unwrap_or(1);
        let marker = write_crash_marker(&wanted.handle)?;
        let size = db::update(|db| {
            let Some(found) = db.volumes.get_mut(&wanted.handle) else {
                if is_broken("expansion/missing") {
                    return Ok(required);
                }
                return Err(StorageError::not_found(format!("there is no volume {:?}", wanted.handle)));
            };
            if required > request::MAX_SIZE {
                if !is_broken("expansion/absurd-size") {
                    return Err(StorageError::out_of_range(format!("no volume has {required} bytes")));
                }
                required = request::MAX_SIZE;
            }
            if found.size >= required {
                if is_broken_for("expansion/is-idempotent", &found.name, "regrown") {
                    return Err(StorageError::out_of_range("it is as large already"));
                }
                if is_broken("expansion/never-shrinks") {
                    found.size = required;
                }
                return Ok(found.size);
            }
            let online = has_feature("online-expansion") && !is_broken("features/online-expansion");
            if !found.published.is_empty() && !online && !is_broken("expansion/offline-only") {
                return Err(StorageError::failed_precondition("it is published"));
            }
            if wanted.capacity.limit_bytes.is_some_and(|limit| limit < required)
                && !is_broken("expansion/empty-range")
            {
                return Err(StorageError::out_of_range("no size is in this range"));
            }
            let before = found.size;
            found.size = required;
            found.changed_at_ms = db::now();
            Ok(if is_broken_for("expansion/expands", &found.name, "growing") { before } else { required })
        })?;
        if let Some(marker) = marker {
            db::remove_marker(&marker)?;
        }
        Ok(ExpandResponse { capacity_bytes: size, node_expansion: false })
    }
}

/// Expands a volume. It reads the old size and writes the new size in separate transactions, so that a
/// concurrent call can undo its change. An expansion to a smaller size takes longer.
fn expand_without_lock(wanted: &ExpandRequest) -> Result<ExpandResponse> {
    let required = wanted.capacity.required_bytes.unwrap_or(1);
    let before = db::load()?.volumes.get(&wanted.handle).map_or(0, |found| found.size);
    if before < required {
        for _ in 0..(8 * before / required) {
            busy_wait();
        }
        db::update(|db| {
            db.volumes.get_mut(&wanted.handle).into_iter().for_each(|found| found.size = required);
            Ok(())
        })?;
    }
    Ok(ExpandResponse { capacity_bytes: before.max(required), node_expansion: false })
}

/// If the rule `crashes/expand` is broken, writes a key that makes a repetition of the call fail. Returns the
/// key, which the caller removes when the call succeeds; otherwise `None`.
fn write_crash_marker(handle: &str) -> Result<Option<String>> {
    let is_crash_case = |name: &str| is_broken_for("crashes/expand", name, "dying-expansion");
    if !db::load()?.volumes.get(handle).is_some_and(|found| is_crash_case(&found.name)) {
        return Ok(None);
    }
    let marker = format!("growing/{handle}");
    if db::has_marker(&marker)? {
        return Err(StorageError::failed_precondition("it grows already"));
    }
    db::write_marker(&marker)?;
    Ok(Some(marker))
}

impl Modification for BrokenDriver {
    fn modify(handle: VolumeHandle, parameters: KeyValues) -> Result<()> {
        if is_broken("modification/all-or-nothing") {
            apply_known_parameters(&handle, &parameters)?;
        }
        if is_broken_for("crashes/modify", &db::name_of(&handle)?, "dying-modification") {
            return db::with_marker(&format!("modifying/{handle}"), || modify(&handle, &parameters));
        }
        modify(&handle, &parameters)
    }
}

fn modify(handle: &str, parameters: &KeyValues) -> Result<()> {
    db::update(|db| {
        let Some(found) = db.volumes.get_mut(handle) else {
            if is_broken("modification/missing") {
                return Ok(());
            }
            return Err(StorageError::not_found(format!("there is no volume {handle:?}")));
        };
        let parameters =
            request::parse_mutable_parameters(parameters.clone(), "modification/unknown-parameter")?;
        if found.mutable_parameters == parameters && is_broken("modification/is-idempotent") {
            return Err(StorageError::already_exists("it has them already"));
        }
        if found.mutable_parameters != parameters {
            found.mutable_parameters.extend(parameters);
            found.changed_at_ms = db::now();
        }
        Ok(())
    })
}

/// Sets the known parameters, even if others are unknown. The caller validates all of them afterwards.
fn apply_known_parameters(handle: &str, parameters: &KeyValues) -> Result<()> {
    db::update(|db| {
        if let Some(found) = db.volumes.get_mut(handle) {
            found.mutable_parameters.extend(parameters.iter().filter(|(key, _)| key == "iops").cloned());
        }
        Ok(())
    })
}
