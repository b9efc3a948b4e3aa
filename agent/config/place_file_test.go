package config

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
)

func TestRecall(t *testing.T) {
	dir := t.TempDir()
	was := Default().Place
	was.RunDir, was.RootDir, was.CgroupRoot, was.BridgeName = dir, "/data/berth", "/machine", "pods0"
	was.PodCIDR, was.Helper = netip.MustParsePrefix("10.9.0.0/16"), "/old/berth-helper"

	recall := func(args ...string) (Place, error) {
		p := Default().Place
		p.RunDir, p.Helper = dir, "/new/berth-helper"
		flags := pflag.NewFlagSet("purge", pflag.ContinueOnError)
		flags.Bool("yes", false, "")
		p.AddFlags(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		return p, p.Recall(flags)
	}
	if p, err := recall(); !errors.Is(err, fs.ErrNotExist) || p.RootDir != Default().RootDir {
		t.Errorf("without a file: %+v, %v", p, err)
	}
	if err := was.Save(); err != nil {
		t.Fatal(err)
	}
	want := was
	want.Helper = "/new/berth-helper"
	if p, err := recall("--yes"); p != want || err != nil {
		t.Errorf("it was %+v, and is %+v, %v", want, p, err)
	}
	want.CgroupRoot, want.PodCIDR = "/other", netip.MustParsePrefix("10.8.0.0/16")
	if p, err := recall("--cgroup-root=/other", "--pod-cidr=10.8.0.0/16", "--yes"); p != want || err != nil {
		t.Errorf("what is said counts: %+v, %v", p, err)
	}
	for _, bad := range []string{"", "{", "{}", "null", `{"RootDir":1}`, `{"RootDir":"/data/berth"}`} {
		if err := os.WriteFile(filepath.Join(dir, PlaceFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := recall("--root-dir=/said")
		if err == nil || p.RootDir != "/said" || p.BridgeName != Default().BridgeName {
			t.Errorf("%q: %+v, %v", bad, p, err)
		}
	}
}
