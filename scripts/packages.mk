# SPDX-License-Identifier: BSD-2-Clause
# make dist, deb, rpm, image: what is released.  Included by tests/tests.mk.
.PHONY: dist deb rpm image

PACKAGES := scripts/packages
DIST     := $(BUILD)/xkv-$(VERSION).tar.gz
MAINTAINER = $(shell sed -n 's/^Maintainer: //p' $(PACKAGES)/debian/control)
DATE      = $(shell git log -1 --format=%cI 2>/dev/null || date -u -r Makefile +%FT%TZ)

# The tracked files as they are, or, in what was unpacked from such a tarball, all of them.  The
# same bytes each time: names in order, times of the commit, no owner.
dist:
	@mkdir -p $(BUILD)
	$(Q){ git ls-files 2>/dev/null | grep . || \
		find . -type f ! -path './$(BUILD)/*' -printf '%P\n'; } | \
		LC_ALL=C sort | tar --create --file - --files-from - --mtime '$(DATE)' \
		--owner 0 --group 0 --numeric-owner --mode go=rX,u+rw,a-s \
		--transform 's,^,xkv-$(VERSION)/,' | \
		gzip -9n >$(DIST)
	@echo $(DIST)

# In build/deb: as dpkg-buildpackage does it for Debian and Ubuntu.
deb: dist
	$(Q)rm -rf $(BUILD)/deb && mkdir -p $(BUILD)/deb
	$(Q)cp $(DIST) $(BUILD)/deb/xkv_$(VERSION).orig.tar.gz
	$(Q)tar -xf $(DIST) -C $(BUILD)/deb
	$(Q)cp -r $(PACKAGES)/debian $(BUILD)/deb/xkv-$(VERSION)/
	$(Q)sed -n '/^BSD 2-Clause License/,$$ { s/^$$/./; s/^/ /; p }' LICENSE \
		>$(BUILD)/deb/licence
	$(Q)sed -i -e '/@BSD@/ { r $(BUILD)/deb/licence' -e 'd }' \
		$(BUILD)/deb/xkv-$(VERSION)/debian/copyright
	$(Q)printf '%s\n' 'xkv ($(VERSION)-1) unstable; urgency=medium' '' \
		'  * Version $(VERSION); CHANGELOG.md says what is new.' '' \
		" -- $(MAINTAINER)  $$(date -R -u -d '$(DATE)')" \
		>$(BUILD)/deb/xkv-$(VERSION)/debian/changelog
	$(Q)cd $(BUILD)/deb/xkv-$(VERSION) && dpkg-buildpackage -b -us -uc
	@ls $(BUILD)/deb/*.deb

# In build/rpm.  On a system of rpm, what it needs to build is checked; on others it cannot be.
rpm: dist
	$(Q)rm -rf $(BUILD)/rpm && mkdir -p $(BUILD)/rpm/SOURCES
	$(Q)cp $(DIST) $(BUILD)/rpm/SOURCES/
	$(Q)rpmbuild -bb $$(rpm -q rpm >/dev/null 2>&1 || echo --nodeps) \
		--define '_topdir $(abspath $(BUILD))/rpm' \
		--define 'xkv_version $(VERSION)' --define 'xkv_date $(DATE)' \
		$(PACKAGES)/xkv.spec
	@ls $(BUILD)/rpm/RPMS/*/*.rpm

# xkv:VERSION, where BUILDER (docker, podman, buildah) keeps its images.
BUILDER    ?= docker
IMAGE_BASE ?= debian:12-slim
image: dist
	$(Q)rm -rf $(BUILD)/image && mkdir -p $(BUILD)/image
	$(Q)tar -xf $(DIST) -C $(BUILD)/image --strip-components 1
	$(Q)$(BUILDER) build -f $(abspath $(BUILD))/image/$(PACKAGES)/Dockerfile \
		--build-arg BASE=$(IMAGE_BASE) -t xkv:$(VERSION) $(BUILD)/image
