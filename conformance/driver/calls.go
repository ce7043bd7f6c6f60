package main

import (
	"encoding/json"
	"os"
	"sync"
	"time"
)

// callLog writes a line at the start and at the end of each call, with the socket that received it.
type callLog struct {
	mutex sync.Mutex
	file  *os.File
	next  int
}

// callRecord is the start or the end of a call. Calls have numbers in the order of their starts.
type callRecord struct {
	Number int    `json:"number"`
	IsEnd  bool   `json:"isEnd"`
	Socket string `json:"socket"`
	Method string `json:"method"`
	// Volume is the volume's name in CreateVolume, and its id in other calls.
	Volume string `json:"volume"`
	// At is the time in nanoseconds since 1970.
	At int64 `json:"at"`
}

// open sets the file of the log.
func (l *callLog) open(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	l.file = file
	return err
}

// start records the start of a call, and returns the function that records its end.
func (l *callLog) start(socket, method string, request any) func() {
	if l.file == nil {
		return func() {}
	}
	record := callRecord{Socket: socket, Method: method}
	switch request := request.(type) {
	case interface{ GetVolumeId() string }:
		record.Volume = request.GetVolumeId()
	case interface{ GetName() string }:
		record.Volume = request.GetName()
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	record.Number = l.next
	l.next++
	l.write(record)
	return func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		record.IsEnd = true
		l.write(record)
	}
}

func (l *callLog) write(record callRecord) {
	record.At = time.Now().UnixNano()
	if err := json.NewEncoder(l.file).Encode(record); err != nil {
		panic(err)
	}
}
