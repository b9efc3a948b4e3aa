package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// recover drops images whose layers did not survive a power cut, and names that point nowhere. What has lost its record
// is found again.
func (c *catalog) recover() error {
	for id, r := range c.images.All() {
		if !c.layers.carry(topLayer(r)) {
			c.log.Warn("image is lost and must be pulled again", "image", id)
			if err := c.images.Delete(id); err != nil {
				return err
			}
			if err := c.labels.remove(id); err != nil {
				c.log.Warn("file of an image is not removed", "image", id, "error", err)
			}
		}
	}
	for name, n := range c.names.All() {
		if _, err := c.images.Get(n.ID); err != nil {
			if err := c.names.Delete(name); err != nil {
				return err
			}
		}
	}
	return c.findAgain()
}

// findAgain makes images of files whose record is lost, and gives images that have none their file.
func (c *catalog) findAgain() error {
	var damaged []string
	all, err := c.labels.all(func(file string, err error) {
		c.log.Warn("file of an image cannot be read", "file", file, "error", err)
		damaged = append(damaged, file)
	})
	if err != nil {
		return fmt.Errorf("find images: %w", err)
	}
	c.spare(damaged)
	labelled := map[string]bool{}
	at := map[string]time.Time{} // of the label that a name was taken from
	for _, l := range all {
		labelled[l.ID] = true
		if err := c.again(l, at); err != nil {
			return fmt.Errorf("find image %s: %w", l.ID, err)
		}
	}
	for id := range c.images.All() {
		if !labelled[id] {
			c.label(id)
		}
	}
	return nil
}

// spare has what belongs to images stay whose record is lost, and whose file is damaged: their names are lost, but who
// pulls or imports such an image again has all of it. The file's name says which configuration it is of, which says
// which layers.
func (c *catalog) spare(damaged []string) {
	c.unread = map[string][]string{}
	for _, file := range damaged {
		id, ok := idOf(file)
		if _, err := c.images.Get(id.String()); !ok || err == nil {
			continue
		}
		body, err := c.indexes.content.read(id)
		var chain []string
		if err == nil {
			chain, err = chainOf(body)
		}
		if err != nil {
			c.log.Warn("image is lost and must be pulled again", "image", id, "error", err)
			continue
		}
		c.log.Warn("image has lost its record and its names, and stays for who pulls or imports it again", "image", id,
			"file", file)
		c.unread[id.String()] = append(layerKeys(chain), id.String())
	}
}

// spared are the layers and the content of such images.
func (c *catalog) spared() (keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.unread {
		keys = append(keys, k...)
	}
	return keys
}

// again makes an image of a label, where its record is lost.
func (c *catalog) again(l labelRecord, at map[string]time.Time) error {
	if _, err := c.images.Get(l.ID); err != nil {
		if !c.layers.carry(topLayer(l.Image)) {
			return c.labels.remove(l.ID)
		}
		c.log.Warn("image has lost its record, and is found again by what is on the disk",
			"image", l.ID, "names", strings.Join(slices.Sorted(maps.Keys(l.Names)), " "))
		if err := c.images.Note(l.ID, l.Image); err != nil {
			return err
		}
	}
	for name, target := range l.Names {
		_, err := c.names.Get(name)
		if taken, again := at[name]; err == nil && (!again || !l.At.After(taken)) {
			continue
		}
		at[name] = l.At
		if err := c.names.Note(name, nameRecord{ID: l.ID, Target: target}); err != nil {
			return err
		}
	}
	return nil
}
