//! Injects faults and latency into calls, for tests of callers.

use cofferdam_guest::{
    Finality, Result, StorageError,
    state::{self, Decision, Store, decide},
};

use crate::{
    fault_rules::{FaultCount, FaultRule},
    records::MemoryCall,
};

/// Returns true if the rule must fail this call. The count is stored before the error is returned, so that no
/// fault is injected twice.
fn is_due(rule: &FaultRule, store: &impl Store) -> Result<bool> {
    let FaultCount::First(times) = rule.count else { return Ok(true) };
    let key = format!("error/{}", rule.text);
    decide(store, |_| {
        let found = state::read::<u32>(store, &key)?;
        let (count, version) = found.map_or((0, None), |found| (found.value, Some(found.version)));
        if count >= times {
            return Ok(Decision::Done(false));
        }
        Ok(Decision::Commit(vec![state::put(&key, &count.saturating_add(1), version)?], true))
    })
}

/// Returns the error of the first rule that applies to the call. `after_effect` selects the rules that fail a
/// call after its effect.
fn inject_fault<S: Store>(call: &MemoryCall<'_, S>, method: &str, after_effect: bool) -> Result<()> {
    for rule in
        call.settings.errors.iter().filter(|rule| rule.method == method && rule.after_effect == after_effect)
    {
        if is_due(rule, call.store)? {
            let message = format!("the setting \"errors\" has {:?}", rule.text);
            return Err(StorageError::new(rule.kind, rule.finality, message));
        }
    }
    Ok(())
}

/// Runs a call with the configured latency and faults.
pub(crate) fn run_with_faults<S: Store, T>(
    call: &MemoryCall<'_, S>,
    method: &str,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if let Some(pause) = call.settings.latency.for_method(method) {
        std::thread::sleep(pause);
    }
    inject_fault(call, method, false)?;
    let answer = run()?;
    // The call has taken effect. The error must not be final, even if the counter cannot be written.
    inject_fault(call, method, true).map_err(|error| StorageError {
        finality: if error.finality == Finality::InProgress { error.finality } else { Finality::Unknown },
        ..error
    })?;
    Ok(answer)
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;
