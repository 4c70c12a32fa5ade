import { ActionIcon, Button, createTheme, defaultVariantColorsResolver, Menu, Modal, Notification, type MantineColorsTuple, Tooltip } from "@mantine/core";

// Water over stone: one accent, greys with a trace of it.
const weir: MantineColorsTuple = ["#e6fbf8", "#cdf3ee", "#9be6dc", "#67d7ca", "#3fc7b8", "#26b0a2", "#129486", "#0b7a70", "#0a645c", "#074a45"];
const dark: MantineColorsTuple = ["#e4e9ec", "#b9c3ca", "#93a0aa", "#6c7983", "#36414a", "#28323a", "#1c242a", "#141a1f", "#0e1317", "#090d10"];

export const theme = createTheme({
  primaryColor: "weir",
  primaryShade: { light: 7, dark: 4 },
  variantColorResolver: (input) => {
    const colours = defaultVariantColorsResolver(input);
    const accent = input.variant === "filled" && (input.color ?? "weir") === "weir";
    return accent ? { ...colours, color: "var(--on-accent)" } : colours;
  },
  colors: { weir, dark },
  fontFamily: "'Inter Variable', system-ui, sans-serif",
  fontFamilyMonospace: "'JetBrains Mono Variable', ui-monospace, monospace",
  fontSizes: { xs: "0.75rem", sm: "0.8125rem", md: "0.875rem", lg: "1rem", xl: "1.25rem" },
  defaultRadius: 4,
  cursorType: "pointer",
  respectReducedMotion: true,
  components: {
    Button: Button.extend({ defaultProps: { size: "xs" } }),
    ActionIcon: ActionIcon.extend({ defaultProps: { variant: "subtle", color: "gray" } }),
    Tooltip: Tooltip.extend({ defaultProps: { openDelay: 300, withArrow: true, multiline: true, maw: 360 } }),
    Modal: Modal.extend({ defaultProps: { centered: false, yOffset: "8vh", closeButtonProps: { "aria-label": "Close" }, size: "lg", overlayProps: { backgroundOpacity: 0.45, blur: 1 }, transitionProps: { duration: 100 } } }),
    Notification: Notification.extend({ defaultProps: { closeButtonProps: { "aria-label": "Close the message" } } }),
    Menu: Menu.extend({ defaultProps: { position: "bottom-end", shadow: "md", transitionProps: { duration: 80 } } }),
  },
});
