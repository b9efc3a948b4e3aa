package quota

import (
	"testing"
	"unsafe"
)

func TestGivenOut(t *testing.T) {
	given := map[uint32]bool{}
	givenOut("1048577:/srv/a\n# 12\nname:1048578\n\nbroken\n99999999999:/x\n", given)
	if len(given) != 2 || !given[1048577] || !given[1048578] {
		t.Errorf("got %v", given)
	}
	if unsafeSizes() != [2]uintptr{28, 112} {
		t.Errorf("sizes %v", unsafeSizes())
	}
}

func unsafeSizes() [2]uintptr {
	return [2]uintptr{unsafe.Sizeof(fsxattr{}), unsafe.Sizeof(diskQuota{})}
}
