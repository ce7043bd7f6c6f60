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

// What goes wrong on purpose, and how often each method was called.
type faults struct {
	mutex   sync.Mutex
	latency time.Duration
	next    map[string]failure
	calls   map[string]int
}

type failure struct {
	code  codes.Code
	times int
}

// The form of METHOD=CODE:TIMES.
func (f *faults) parse(text string) error {
	method, rest, ok := strings.Cut(text, "=")
	name, count, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 {
		return fmt.Errorf("%q: expected METHOD=CODE:TIMES", text)
	}
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(strconv.Quote(name))); err != nil {
		return fmt.Errorf("%q: expected a code of gRPC such as UNAVAILABLE: %w", name, err)
	}
	times, err := strconv.Atoi(count)
	if err != nil || times < 0 {
		return fmt.Errorf("%q: expected how many times", count)
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.next == nil {
		f.next = map[string]failure{}
	}
	f.next[method] = failure{code: code, times: times}
	return nil
}

func (f *faults) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	latency, err := f.count(method)
	if err != nil {
		return nil, err
	}
	// What the driver can do is said at once: csi-resizer asks for it before each of its calls.
	asks := strings.HasSuffix(method, "GetCapabilities")
	if latency > 0 && !asks && strings.Contains(info.FullMethod, ".Controller/") {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	answer, err := handler(ctx, request)
	if err != nil {
		log.Printf("%s: %v", method, err)
	}
	return answer, err
}

func (f *faults) count(method string) (time.Duration, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[method]++
	next := f.next[method]
	if next.times == 0 {
		return f.latency, nil
	}
	next.times--
	f.next[method] = next
	return 0, status.Errorf(next.code, "%s fails on purpose, %d times more", method, next.times)
}

// GET /volumes, /snapshots and /calls say what there is; POST /fail and /latency change what goes wrong.
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
