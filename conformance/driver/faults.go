package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults injects latency and failures, and counts the calls of each method.
type faults struct {
	mutex    sync.Mutex
	latency  time.Duration
	failures map[string]failure
	calls    map[string]int
	oddities *oddities
	log      callLog
}

type failure struct {
	code  codes.Code
	times int
}

// parse reads METHOD=CODE:TIMES: the next TIMES calls of METHOD fail with CODE.
func (f *faults) parse(text string) error {
	method, rest, ok := strings.Cut(text, "=")
	name, count, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 {
		return fmt.Errorf("%q: expected METHOD=CODE:TIMES", text)
	}
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(strconv.Quote(name))); err != nil {
		return fmt.Errorf("%q: expected a gRPC code such as UNAVAILABLE: %w", name, err)
	}
	times, err := strconv.Atoi(count)
	if err != nil || times < 0 {
		return fmt.Errorf("%q: expected the number of failures", count)
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.failures == nil {
		f.failures = map[string]failure{}
	}
	f.failures[method] = failure{code: code, times: times}
	return nil
}

// interceptor returns the interceptor of the calls at a socket.
func (f *faults) interceptor(socket string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
		defer f.log.start(socket, method, request)()
		return f.intercept(ctx, method, request, info, handler)
	}
}

func (f *faults) intercept(ctx context.Context, method string, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	latency, err := f.record(method)
	if err != nil {
		return nil, err
	}
	if err := f.oddities.check(ctx, method, request); err != nil {
		log.Printf("%s: %v", method, err)
		return nil, err
	}
	// Capabilities have no latency: csi-resizer requests them before each of its calls.
	isCapabilities := strings.HasSuffix(method, "GetCapabilities")
	if latency > 0 && !isCapabilities && strings.Contains(info.FullMethod, ".Controller/") {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	response, err := handler(ctx, request)
	if err != nil {
		log.Printf("%s: %v", method, err)
	}
	return response, err
}

// record counts the call. It returns the latency or the injected failure.
func (f *faults) record(method string) (time.Duration, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[method]++
	next := f.failures[method]
	if next.times == 0 {
		return f.latency, nil
	}
	next.times--
	f.failures[method] = next
	return 0, status.Errorf(next.code, "%s injected failure, %d remaining", method, next.times)
}

// adminHandler serves GET /volumes, /snapshots and /calls, and changes the faults by POST /fail, /latency and /stuck.
func adminHandler(state *state, faults *faults) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /volumes", func(w http.ResponseWriter, _ *http.Request) {
		state.mutex.Lock()
		defer state.mutex.Unlock()
		reply(w, state.volumes)
	})
	mux.HandleFunc("GET /snapshots", func(w http.ResponseWriter, _ *http.Request) {
		state.mutex.Lock()
		defer state.mutex.Unlock()
		reply(w, state.snapshots)
	})
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) {
		faults.mutex.Lock()
		defer faults.mutex.Unlock()
		reply(w, faults.calls)
	})
	mux.HandleFunc("POST /fail", func(w http.ResponseWriter, r *http.Request) {
		if err := faults.parse(r.URL.Query().Get("next")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("POST /stuck", func(_ http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		faults.oddities.setStuck(query.Get("method"), query.Get("mended") == "")
	})
	mux.HandleFunc("POST /latency", func(w http.ResponseWriter, r *http.Request) {
		latency, err := time.ParseDuration(r.URL.Query().Get("time"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		faults.mutex.Lock()
		defer faults.mutex.Unlock()
		faults.latency = latency
	})
	return mux
}

func reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		log.Printf("admin: %v", err)
	}
}
