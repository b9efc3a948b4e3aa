package image

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/cri/image/imagetest"
)

func TestImport(t *testing.T) {
	built := imagetest.Build(twoLayers)
	zst := twoLayers
	zst.Packing, zst.Name = imagetest.Zstd, "example.org/x/y:z"
	other := imagetest.Build(zst)
	for name, data := range map[string][]byte{
		"docker": built.DockerArchive(), "oci": built.OCIArchive(), "two in docker": built.DockerArchive(other), "two in oci": built.OCIArchive(other),
		"docker gz": imagetest.Pack(imagetest.Gzip, built.DockerArchive()), "oci zst": imagetest.Pack(imagetest.Zstd, built.OCIArchive()),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			imgs, err := w.Import(t.Context(), bytes.NewReader(data), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range imgs {
				t.Log(i.ID, i.Names())
			}
			if _, err := w.Get("hello:v1"); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("dir", func(t *testing.T) {
		w := newWorld(t)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.tar"), built.OCIArchive(), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := w.ImportDir(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
		}
	})
}
