package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func parsed(t *testing.T, args ...string) Config {
	t.Helper()
	c := Default()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPinning(t *testing.T) {
	c := parsed(t, "--cpu-manager-policy=static", "--cpu-manager-policy-options=full-pcpus-only=true,align-by-socket=true",
		"--reserved-cpus=0-1,8",
		"--memory-manager-policy=Static", "--reserved-memory=0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi", "--reserved-memory=2:memory=1Gi",
		"--topology-manager-policy=restricted", "--topology-manager-scope=pod", "--topology-manager-policy-options=prefer-closest-numa-nodes=true,max-allowable-numa-nodes=9")
	p, err := c.Pinning()
	if err != nil {
		t.Fatal(err)
	}
	if !p.StaticCPUs || !p.CPU.FullPCPUsOnly || !p.CPU.AlignBySocket || p.Reserved.String() != "0-1,8" ||
		!p.StaticMemory || !p.PodScope || !p.Closest || p.MaxNodes != 9 {
		t.Errorf("got %+v", p)
	}
	if len(p.ReservedMemory) != 3 || p.ReservedMemory[0].Limits.Name("hugepages-2Mi", "").String() != "64Mi" ||
		p.ReservedMemory[2].Node != 2 {
		t.Errorf("reserved memory is %v", p.ReservedMemory)
	}
	c = Default()
	if p, err := c.Pinning(); err != nil || p.Enabled() {
		t.Errorf("by default it is %+v (%v)", p, err)
	}
}

func TestPinningRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--cpu-manager-policy=dynamic":     "must be one of none, static",
		"--memory-manager-policy=none":     "must be one of None, Static",
		"--topology-manager-policy=strict": "single-numa-node",
		"--topology-manager-scope=node":    "container, pod",
		"--reserved-cpus=a":                "--reserved-cpus",
		"--reserved-cpus=0-4000000000":     "no machine has a CPU 4000000000",
		"--cpu-manager-policy-options=full-pcpus-only=true": "are those of --cpu-manager-policy " +
			"static",
		"--cpu-manager-policy=static --cpu-manager-policy-options=fast=true":         `no option "fast"`,
		"--cpu-manager-policy=static --cpu-manager-policy-options=align-by-socket=x": "must be true or false",
		"--cpu-manager-policy=static --topology-manager-policy=single-numa-node " +
			"--cpu-manager-policy-options=align-by-socket=true": "exclude each other",
		"--cpu-manager-policy=static " +
			"--cpu-manager-policy-options=full-pcpus-only=true,distribute-cpus-across-cores=true": "exclude each other",
		"--topology-manager-policy-options=max-allowable-numa-nodes=99": "from 8 to 16",
		"--reserved-memory=0":                     "must be NODE:KIND=QUANTITY",
		"--reserved-memory=0:cpu=1":               "must be memory=QUANTITY",
		"--reserved-memory=0:memory=x":            "a quantity above 0",
		"--reserved-memory=0:memory=1e-999999999": "exponent from -99 to 99",
		"--reserved-memory=0:memory=1e999999999":  "exponent from -99 to 99",
		"--reserved-memory=0:memory=1;0:memory=1": "named before",
		"--reserved-memory=0:memory=1,memory=2":   "named before",
	} {
		c := parsed(t, strings.Fields(args)...)
		if _, err := c.Pinning(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
	}
}

func FuzzReservedMemory(f *testing.F) {
	f.Add("0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseReservedMemory([]string{s})
		for _, n := range list {
			if err != nil || n.Node < 0 || len(n.Limits) == 0 {
				t.Errorf("%q: %v (%v)", s, list, err)
			}
		}
	})
}
