// Package loop makes block devices of files. A device is found again by the file that is behind it, never by its
// number: the kernel gives numbers to others when nobody holds them.
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	control = "/dev/loop-control"
	// major is the number of the driver of loop devices.
	major = 7
	// maxRaces bounds how often a free device is looked for: between the look and the taking somebody else may take it.
	maxRaces = 1000
)

// BlockSize is the logical block size of the devices, in bytes, of which images have a multiple. Left to itself the
// kernel takes what the file below wants, which is more when that shares its blocks with others: what was made on a
// device with small blocks could not be mounted then.
const BlockSize = 4096

// Device is a device that is held open. One that clears itself goes when it is closed, unless it is mounted by then.
type Device struct {
	Path string
	file *os.File
}

// Close lets go of the device.
func (d *Device) Close() error { return d.file.Close() }

// Attach makes a device of an image, or finds the one that there is. With autoClear the kernel takes the device away
// when the last of those who have it open or mounted goes: whoever is killed leaves none behind. A device that is
// handed on as such has to stay while nobody has it open.
func Attach(ctx context.Context, image string, autoClear bool) (*Device, error) {
	if d, err := open(image); err != nil || d != nil {
		return d, err
	}
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach image: %w", err)
	}
	defer f.Close()
	// The page cache of the file would hold a second time what that of the device holds.
	flags := uint32(unix.LO_FLAGS_DIRECT_IO)
	if autoClear {
		flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	for range maxRaces {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("attach %s: %w", image, err)
		}
		d, err := configure(f, flags)
		if err == nil {
			return d, nil
		}
		if errors.Is(err, unix.EINVAL) && flags&unix.LO_FLAGS_DIRECT_IO != 0 {
			flags &^= unix.LO_FLAGS_DIRECT_IO
			continue
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) {
			return nil, fmt.Errorf("attach %s: %w", image, err)
		}
	}
	return nil, fmt.Errorf("attach %s: others take every free loop device", image)
}

// configure takes a free device for an image; EBUSY: somebody else has taken it first.
func configure(image *os.File, flags uint32) (*Device, error) {
	c, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer c.Close()
	n, err := unix.IoctlRetInt(int(c.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("find free loop device: %w", err)
	}
	path := "/dev/loop" + strconv.Itoa(n)
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // where /dev is not the kernel's own, nobody makes its name
		if err := unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(major, uint32(n)))); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
		dev, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Size: BlockSize, Info: unix.LoopInfo64{Flags: flags}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], image.Name())
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		dev.Close()
		return nil, fmt.Errorf("configure %s: %w", path, err)
	}
	return &Device{Path: path, file: dev}, nil
}

// Attached is a device and the path of the image behind it, as the kernel knows it.
type Attached struct{ Path, Image string }

// Under lists the devices whose images are in a directory, whose path has no links in it.
func Under(dir string) ([]Attached, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var out []Attached
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil { // it has gone meanwhile
			continue
		}
		image := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), " (deleted)")
		if filepath.Dir(image) == dir {
			name := filepath.Base(filepath.Dir(filepath.Dir(file)))
			out = append(out, Attached{Path: "/dev/" + name, Image: image})
		}
	}
	return out, nil
}

// open opens the device of an image; nil when it has none.
func open(image string) (*Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil {
		return nil, fmt.Errorf("look at image %s: %w", image, err)
	}
	all, err := Under(filepath.Dir(image))
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if a.Image != image {
			continue
		}
		f, err := os.OpenFile(a.Path, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		// It may have gone, and another have come, since its name was read.
		info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
			return &Device{Path: a.Path, file: f}, nil
		}
		f.Close()
	}
	return nil, nil
}

// Find is the path of an image's device; "" when it has none.
func Find(image string) (string, error) {
	d, err := open(image)
	if err != nil || d == nil {
		return "", err
	}
	return d.Path, d.Close()
}

// Detach takes away the device of an image, once nobody has it open. It is no error when there is none, or no image.
func Detach(image string) error {
	d, err := open(image)
	if errors.Is(err, os.ErrNotExist) || err == nil && d == nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err := unix.IoctlRetInt(int(d.file.Fd()), unix.LOOP_CLR_FD); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", d.Path, err)
	}
	return nil
}

// Resize has the device of an image be as large as the image is by now. It is no error when there is none.
func Resize(image string) error {
	d, err := open(image)
	if err != nil || d == nil {
		return err
	}
	defer d.Close()
	if _, err := unix.IoctlRetInt(int(d.file.Fd()), unix.LOOP_SET_CAPACITY); err != nil {
		return fmt.Errorf("resize %s: %w", d.Path, err)
	}
	return nil
}
