use cofferdam_domain::storage::{Secret, Secrets};

use super::*;

fn driver_status(code: Code) -> CsiCallFailure {
    CsiCallFailure::Rpc(RpcError::Status(code, "no".to_owned()))
}

#[test]
fn grpc_codes_map_to_error_kind_and_finality() {
    use ErrorKind as K;
    use Finality::{Final, InProgress, Unknown};
    use ResourceExhaustedMeaning::{Final as P, InDoubt as R};
    // The columns are code, kind, and finality of a create and of a change.
    #[rustfmt::skip]
    let table = [
        (1,  K::Cancelled,          Unknown,    Unknown),
        (2,  K::Unknown,            Final,      Final),
        (3,  K::InvalidArgument,    Final,      Final),
        (4,  K::DeadlineExceeded,   Unknown,    Unknown),
        (5,  K::NotFound,           Final,      Final),
        (6,  K::AlreadyExists,      Final,      Final),
        (7,  K::PermissionDenied,   Final,      Final),
        (8,  K::ResourceExhausted,  Final,      Unknown),
        (9,  K::FailedPrecondition, Final,      Final),
        (10, K::Aborted,            InProgress, InProgress),
        (11, K::OutOfRange,         Final,      Final),
        (12, K::Unimplemented,      Final,      Final),
        (13, K::Internal,           Final,      Final),
        (14, K::Unavailable,        Unknown,    Unknown),
        (15, K::DataLoss,           Final,      Final),
        (16, K::Unauthenticated,    Final,      Final),
    ];
    let redactor = Redactor::default();
    for (number, kind, creating, changing) in table {
        for (resource_exhausted, finality) in [(P, creating), (R, changing)] {
            let error = driver_status(Code::from_i32(number)).into_error(resource_exhausted, &redactor);
            assert_eq!((error.kind, error.finality), (kind, finality), "{number} {resource_exhausted:?}");
            assert_eq!(error.message, "no");
        }
    }
}

#[test]
fn failures_without_a_driver_status_are_never_final() {
    let second = Duration::from_secs(1);
    let text = || "x".to_owned();
    for (failure, kind, finality, label) in [
        (
            CsiCallFailure::Rpc(RpcError::ConnectionLost(text())),
            ErrorKind::Unavailable,
            Finality::Unknown,
            "connection-lost",
        ),
        (
            CsiCallFailure::Rpc(RpcError::MalformedResponse(text())),
            ErrorKind::Internal,
            Finality::Unknown,
            "contract-violation",
        ),
        (
            CsiCallFailure::Rpc(RpcError::DeadlineExceeded(second)),
            ErrorKind::DeadlineExceeded,
            Finality::Unknown,
            "deadline",
        ),
        (
            CsiCallFailure::ContractViolation(ContractViolation::RepeatedToken),
            ErrorKind::Internal,
            Finality::Unknown,
            "contract-violation",
        ),
        (CsiCallFailure::NotConnected(text()), ErrorKind::Unavailable, Finality::Unknown, "not-connected"),
        (CsiCallFailure::Overloaded, ErrorKind::Unavailable, Finality::Unknown, "overloaded"),
        (CsiCallFailure::Conflict(OperationConflict::Busy), ErrorKind::Aborted, Finality::InProgress, "busy"),
    ] {
        assert_eq!(failure.label(), label);
        let error = failure.into_error(ResourceExhaustedMeaning::Final, &Redactor::default());
        assert_eq!((error.kind, error.finality), (kind, finality), "{error}");
    }
}

#[test]
fn error_messages_are_one_line_without_secrets() {
    let secrets: Secrets = [("password".to_owned(), Secret::new("hunter2"))].into_iter().collect();
    let redactor = Redactor::new(secrets);
    let message = |text: &str| {
        let failure = CsiCallFailure::Rpc(RpcError::Status(Code::Internal, text.to_owned()));
        failure.into_error(ResourceExhaustedMeaning::Final, &redactor).message
    };
    assert_eq!(message("login with hunter2\nfailed"), "login with [secret] failed");
    assert_eq!(message(" \n"), "the driver gives no reason");
    assert!(message(&"x".repeat(5_000)).len() < 1_100);
}

#[test]
fn grpc_codes_are_spelled_as_in_go() {
    let names = [Code::Ok, Code::Cancelled, Code::NotFound].map(go_code_name);
    assert_eq!(names, ["OK", "Canceled", "NotFound"]);
}
