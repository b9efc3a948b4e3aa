//go:build !seccomp

package main

import (
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func (l launch) filter(*specs.LinuxSeccomp) ([]byte, error) {
	return nil, errors.New("berth-helper was built without seccomp")
}

func native(*specs.LinuxSeccomp) bool { return false }
