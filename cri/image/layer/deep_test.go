package layer

import (
	"archive/tar"
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/filetree/filetreetest"
)

// An archive takes few descriptors, however deep its names are, and however deep what it has deleted is.
func TestAnyDepth(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/old", 0o755); err != nil {
		t.Fatal(err)
	}
	filetreetest.Nest(t, dir+"/old", strings.Repeat("n", 50), 1500, 10)
	deep := strings.Repeat("d/", 1500)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: deep + "file", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: deep + "link", Typeflag: tar.TypeSymlink, Linkname: "/" + deep},
		{Name: deep + "link/" + strings.Repeat("e/", 300) + "file", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: ".wh.old", Typeflag: tar.TypeReg},
		{Name: "d/.wh..wh..opq", Typeflag: tar.TypeReg},
		{Name: "d", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	undo := filetreetest.FewFiles(t, maxOpen*2+20)
	defer undo()
	if _, err := Apply(t.Context(), &b, dir,
		Options{Whiteouts: snapshot.WhiteoutsApply, Budget: NewBudget(1<<30, 1<<20)}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || !left[0].Type().IsRegular() {
		t.Errorf("left: %v, %v", left, err)
	}
}
