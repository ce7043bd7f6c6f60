package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// copyData copies the files of a volume or snapshot to a new one. Without a directory, and for a volume that no node has
// staged, there are none. A copy that an earlier failed call left is replaced.
func (s *state) copyData(from, to string) error {
	if s.directory == "" || from == "" {
		return nil
	}
	if err := s.removeData(to); err != nil {
		return err
	}
	source := filepath.Join(s.directory, from)
	if _, err := os.Stat(source); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.CopyFS(filepath.Join(s.directory, to), os.DirFS(source)); err != nil {
		return status.Errorf(codes.Internal, "copy %s to %s: %v", from, to, err)
	}
	return nil
}

// removeData removes the files of a volume or snapshot.
func (s *state) removeData(id string) error {
	if s.directory == "" {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(s.directory, id)); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
