package main

import specs "github.com/opencontainers/runtime-spec/specs-go"

func (l launch) exportSeccomp(_ *specs.LinuxSeccomp) error { return nil }
