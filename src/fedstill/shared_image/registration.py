"""Registers the shared-image package: patches, proxy selection, and methods that exchange logits."""

BRINGS = {
    "method": {
        "fedstill.shared_image.feddf": ("feddf",),
        "fedstill.shared_image.fedmd": ("fedmd",),
        "fedstill.shared_image.single_image": ("single-image",),
    },
    "input of a method": {"fedstill.shared_image.shared_proxy": ("shared samples",)},
    "command": {"fedstill.shared_image.patches_command": ("patches",)},
}
