package main

import (
	"context"
	"fmt"
	"log"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// oddities are properties of public drivers that the CSI specification allows, or that drivers have in spite of it.
type oddities struct {
	// secrets is the Secret that calls of a method must have, by method.
	secrets    map[string]secret
	secretCode codes.Code
	// isTopologyUndeclared: created volumes have a topology, and the plugin lacks VOLUME_ACCESSIBILITY_CONSTRAINTS.
	isTopologyUndeclared bool
	// lacksCreate: the controller lacks CREATE_DELETE_VOLUME.
	lacksCreate bool
	// idLength is the minimum length of volume ids in bytes.
	idLength int
	// idPrefix is the beginning of every id.
	idPrefix string
	// notReady is the number of Probe calls that return ready=false. Until then every other call fails.
	notReady int
	mutex    sync.Mutex
	// stuck methods: the first call has no response until the caller's deadline, and later ones fail with INTERNAL.
	stuck map[string]stuckState
}

type secret struct {
	key   string
	value string
}

type stuckState int

const (
	firstCallHangs stuckState = iota
	laterCallsFail
)

// requireSecret parses METHOD=KEY=VALUE.
func (o *oddities) requireSecret(text string) error {
	method, rest, ok := strings.Cut(text, "=")
	key, value, ok2 := strings.Cut(rest, "=")
	if !ok || !ok2 || method == "" || key == "" {
		// The value is secret.
		return fmt.Errorf("expected METHOD=KEY=VALUE")
	}
	if o.secrets == nil {
		o.secrets = map[string]secret{}
	}
	o.secrets[method] = secret{key: key, value: value}
	return nil
}

// setStuck makes a method stuck, or mends it.
func (o *oddities) setStuck(method string, isStuck bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if !isStuck {
		delete(o.stuck, method)
		return
	}
	if o.stuck == nil {
		o.stuck = map[string]stuckState{}
	}
	o.stuck[method] = firstCallHangs
}

// check fails a call as the driver's oddities require.
func (o *oddities) check(ctx context.Context, method string, request any) error {
	if err := o.checkReady(method); err != nil {
		return err
	}
	if err := o.checkSecret(method, request); err != nil {
		return err
	}
	o.mutex.Lock()
	state, isStuck := o.stuck[method]
	if isStuck {
		o.stuck[method] = laterCallsFail
	}
	o.mutex.Unlock()
	if !isStuck {
		return nil
	}
	if state == firstCallHangs {
		log.Printf("%s hangs until its deadline", method)
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Errorf(codes.Internal, "%s is stuck", method)
}

func (o *oddities) checkReady(method string) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.notReady > 0 && method != "Probe" {
		return status.Errorf(codes.FailedPrecondition, "%s: the driver is not ready", method)
	}
	return nil
}

// probe counts a Probe call and reports whether the driver is ready.
func (o *oddities) probe() bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.notReady > 0 {
		o.notReady--
		return false
	}
	return true
}

func (o *oddities) checkSecret(method string, request any) error {
	expected, ok := o.secrets[method]
	if !ok {
		return nil
	}
	var secrets map[string]string
	if with, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		secrets = with.GetSecrets()
	}
	if secrets[expected.key] != expected.value {
		return status.Errorf(o.secretCode, "%s requires the secret %q", method, expected.key)
	}
	return nil
}

// parseSecretCode parses the code of calls without the expected Secret.
func (o *oddities) parseSecretCode(text string) error {
	switch text {
	case "UNAUTHENTICATED":
		o.secretCode = codes.Unauthenticated
	case "INVALID_ARGUMENT":
		o.secretCode = codes.InvalidArgument
	default:
		return fmt.Errorf("%q: expected UNAUTHENTICATED or INVALID_ARGUMENT", text)
	}
	return nil
}
